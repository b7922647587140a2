"""WatchFleet: the fleet, sent again whenever lookups may have to go elsewhere.

It serves clients that read straight from nodes, and people who watch the fleet change. Nothing is queued: after a
reader has taken one description, the next is made from the newest table, so a slow reader misses those in between. A
table is described once for all watchers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable
from statehouse.rpc.streams import OpenStreams
from statehouse.runtime.address_limits import AddressLimit
from statehouse.v1 import fleet_service_pb2

Describe = Callable[[RoutingTable], fleet_service_pb2.GetFleetResponse]
SendFleet = Callable[[fleet_service_pb2.WatchFleetResponse], Awaitable[None]]


class FleetWatch:
    """Answers WatchFleet. Lives on the event loop."""

    def __init__(
        self, tables: CurrentTable, describe: Describe, *, max_watches: int, max_watches_per_address: int | None
    ) -> None:
        self._tables, self._describe = tables, describe
        self.streams = OpenStreams(max_watches, "router", AddressLimit(max_watches, max_watches_per_address))
        self._described: tuple[RoutingTable, fleet_service_pb2.WatchFleetResponse] | None = None

    async def watch(self, request: fleet_service_pb2.WatchFleetRequest, send: SendFleet, address: str = "") -> None:
        """Send the fleet until the caller, who is at this address, leaves.

        Raises:
            LookupFailure: ROUTING_NOT_READY, OVERLOADED (too many watches are open) or NODE_SHUTTING_DOWN.

        """
        await self.streams.run(self._watch(send), request.ByteSize(), address)

    async def _watch(self, send: SendFleet) -> None:
        table = self._tables.current()
        while True:
            await send(self._response(table))
            table = await self._tables.changed_since(table)

    def _response(self, table: RoutingTable) -> fleet_service_pb2.WatchFleetResponse:
        if self._described is None or self._described[0] is not table:
            self._described = (table, fleet_service_pb2.WatchFleetResponse(fleet=self._describe(table)))
        return self._described[1]
