"""WatchFleet: the fleet, sent again whenever lookups may have to go elsewhere.

Clients that go straight to nodes follow it, and whoever wants to see the fleet change. Nothing is queued: once a reader
has taken one description, the next is made of the newest table, so a slow one misses those in between. A table is
described once for all who watch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from router.holder import TableHolder
from router.table import RoutingTable
from statehouse.rpc.streams import Streams
from statehouse.v1 import fleet_service_pb2

Describe = Callable[[RoutingTable], fleet_service_pb2.GetFleetResponse]
Send = Callable[[fleet_service_pb2.WatchFleetResponse], Awaitable[None]]


class FleetWatch:
    """Answers WatchFleet. Lives on the event loop."""

    def __init__(self, tables: TableHolder, describe: Describe, *, max_watches: int) -> None:
        self._tables, self._describe = tables, describe
        self.streams = Streams(max_watches, "router")
        self._described: tuple[RoutingTable, fleet_service_pb2.WatchFleetResponse] | None = None

    async def watch(self, send: Send) -> None:
        """Send the fleet until the caller leaves.

        Raises:
            LookupFailure: ROUTING_NOT_READY, OVERLOADED (as many watch as may) or NODE_SHUTTING_DOWN.

        """
        await self.streams.run(self._watch(send))

    async def _watch(self, send: Send) -> None:
        table = self._tables.current()
        while True:
            await send(self._response(table))
            table = await self._tables.changed_since(table)

    def _response(self, table: RoutingTable) -> fleet_service_pb2.WatchFleetResponse:
        if self._described is None or self._described[0] is not table:
            self._described = (table, fleet_service_pb2.WatchFleetResponse(fleet=self._describe(table)))
        return self._described[1]
