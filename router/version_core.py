"""A version of the application, as a router has it: its fleet, the calls to it, and the services that answer by it.

A router has a complete core for each version. What a call needs, its retries included, comes from one core, so no
answer is made of two versions (docs/adr/0040-a-version-is-an-application.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.calls.express_way import ExpressWay
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable
from router.fleet.tracker import FleetTracker
from router.fleet_api.inputs import Inputs
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from router.lookups.explain import Explainer
from router.lookups.overload import LookupLimit
from router.service import FleetHandlers, QueryHandlers
from router.telemetry.metrics import RouterMetrics
from router.wiring import new_calls, new_express_door, new_express_way, new_lookups, new_watches, request_times
from statehouse.contract.version_names import application_of, version_in, wire_version
from statehouse.link.proxy import Proxy
from statehouse.observability.tracing import Tracing
from statehouse.settings import RouterSettings
from statehouse.v1 import fleet_service_pb2


class FleetReaders(Protocol):
    """What reads the control topics of a core."""

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""

    def silence_s(self) -> float | None:
        """Return seconds since its fleet was last known to be read to the end; None if never."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all versions of a router have in common. `limit`: on the lookups of all of them."""

    proxy: Proxy | None
    metrics: RouterMetrics
    tracing: Tracing | None
    limit: LookupLimit
    on_broken: Callable[[Exception], None]


class VersionCore:
    """A version's part of a router. Lives on the event loop; `ControlTopicReaders` feeds it from the control topics.

    `on_table` is called with each routing table.
    """

    def __init__(
        self,
        version: str,
        settings: RouterSettings,
        around: Surroundings,
        on_table: Callable[[VersionCore, RoutingTable], None],
    ) -> None:
        self.version = version
        application_id = application_of(settings.application_id, version)
        self.settings = settings.model_copy(update={"application_id": application_id})
        self.wire = wire_version(version_in(application_id))
        """The version as stamps and tokens have it."""
        self.left = asyncio.Event()
        """Set when another version serves in its place."""
        self.readers: FleetReaders | None = None
        self._around, self._on_table = around, on_table
        metrics = around.metrics
        self.tables = CurrentTable()
        self.express = new_express_door(settings, has_proxy=around.proxy is not None)
        self.calls = calls = new_calls(settings, around.proxy, metrics, self.express.refresh)
        self.tracker = FleetTracker(
            self.tables,
            self._take_table,
            session_timeout_s=settings.session_timeout_ms / 1_000,
            rack=settings.router_rack,
            version=self.wire,
            on_defect=around.on_broken,
        )
        self.inputs, self.queries, self.controller = Inputs(), ProcessorQueries(), ControllerReport()
        self.lookups = lookups = new_lookups(
            settings, self.tables, calls, metrics, around.tracing, around.limit, self.queries.newest_moment
        )
        self.watches = new_watches(settings, self.tables, calls, lookups.dispatcher, metrics)
        self.handlers = QueryHandlers(self.tables, lookups, self.watches, metrics, request_times(settings))
        self.unary = self.handlers.unary()
        self.fleet = FleetHandlers(
            application_id,
            self.tables,
            self.tracker,
            calls.health,
            self.inputs,
            self.queries,
            self.controller,
            Explainer(
                self.tables, lookups.limit, lookups.keys, calls.health, calls.answer_times, self.express.obstacle_to
            ),
            served_by=self._served_by,
            version=version,
            times=request_times(settings),
            max_watches=settings.max_watches,
            max_watches_per_address=settings.max_watches_per_address,
        )

    @property
    def is_routed(self) -> bool:
        """Whether it has a routing table."""
        return self.tables.table is not None

    def new_way(self, proxy: Proxy, after: int) -> ExpressWay:
        """Return an express way by its table. `after`: the number of the last snapshot that the proxy was given."""
        return new_express_way(self.settings, proxy, self.tables, self.calls, self._around.metrics, self.wire, after)

    def end_watches(self) -> None:
        """End what lasts; callers learn to go elsewhere."""
        self.watches.streams.stop()
        self.fleet.watches.streams.stop()

    async def close(self) -> None:
        """Stop following the fleet, and close the connections to it."""
        self.tracker.close()
        self.end_watches()
        if self.readers is not None:
            await self.readers.stop()
        await self.calls.health.close()
        await self.calls.channels.close()

    @property
    def _served_by(self) -> fleet_service_pb2.ServedBy.ValueType:
        if self._around.proxy is None:
            return fleet_service_pb2.SERVED_BY_GRPCIO
        if self.express.obstacle is not None:
            return fleet_service_pb2.SERVED_BY_PROXY
        return fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY

    def _take_table(self, table: RoutingTable) -> None:
        self.calls.channels.retain(table.nodes)
        self.calls.health.retain(table.nodes)
        self.calls.answer_times.retain(table.nodes.keys(), table.stores.keys())
        self.lookups.holds.retain(table.stores.keys())
        self.express.refresh()
        self._on_table(self, table)
