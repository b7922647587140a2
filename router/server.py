"""The router process: serves one gRPC port by what the control topics say, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc.aio
import structlog

from router.calls.channels import QUERY_SERVICE
from router.calls.express_way import ExpressWay
from router.calls.liveness import show_liveness
from router.control_topics import ControlTopicReaders
from router.fleet.readiness import is_ready
from router.fleet.table import RoutingTable
from router.lookups.overload import LookupLimit
from router.service import FLEET_SERVICE
from router.switched import SwitchedFleet, SwitchedQueries
from router.telemetry.collector import TableCollector
from router.telemetry.metrics import RouterMetrics
from router.version_core import FleetReaders, Surroundings, VersionCore
from router.version_switch import VersionSwitch
from router.web import WebProcess
from router.wiring import new_verifier
from statehouse.contract.version_names import FIRST
from statehouse.link.proxy import proxy_for
from statehouse.observability import logs
from statehouse.observability.denials import counted_gate
from statehouse.observability.metrics import serve_metrics
from statehouse.observability.proxy_sums import ProxyCollector
from statehouse.observability.tracing import tracing_for
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.rpc.server import RpcServer
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.stop_deadline import CLOSE_S, StopDeadline, end_threads
from statehouse.runtime.waiting import StopSignals, is_set_within, stop_signals
from statehouse.settings import RouterSettings
from statehouse.v1 import fleet_service_pb2_grpc

log = structlog.get_logger(__name__)

_READINESS_JUDGED_EVERY_S: Final = 0.5
# The proxy acts on a snapshot for three seconds at most after it was last said to hold: no more switches fit there.
_WAYS_KEPT: Final = 16


class RouterServer:
    """A router. Its cores, one for each version of the application, are fed from the control topics.

    Those of the first version that a reader of its topics feeds, are attributes: `tables`, `tracker`, ….
    """

    def __init__(
        self, settings: RouterSettings, on_broken: Callable[[Exception], None], *, share_port: bool = False
    ) -> None:
        """Build everything and bind the port; must run on the event loop that will serve.

        `on_broken(error)` is called when callers can't reach the router any more, or it can't follow the fleet.
        `share_port`: several processes share that port.
        """
        self._settings = settings
        self.metrics = metrics = RouterMetrics()
        self.skipped = UnreadableRecords(metrics.registry, "statehouse_router")
        bind = f"{settings.bind_host}:{settings.router_port}"
        self._tracing = tracing_for("router")
        self._proxy = proxy_for(
            settings,
            bind,
            on_broken,
            share_port=share_port,
            is_traced=self._tracing is not None,
            server_name=settings.tls_node_name,
        )
        self._background = BackgroundWork()
        limit = LookupLimit(settings.max_lookups, self._lookups_elsewhere)
        self._around = Surroundings(self._proxy, metrics, self._tracing, limit, on_broken)
        self._follow: Callable[[VersionCore], FleetReaders | None] = lambda _core: None
        first = self.first = VersionCore(FIRST, settings, self._around, self._on_table)
        self.tables, self.tracker, self.health = first.tables, first.tracker, first.calls.health
        self.channels, self.coalescer, self.watches = first.calls.channels, first.calls.coalescer, first.watches
        self.inputs, self.queries, self.controller = first.inputs, first.queries, first.controller
        self.versions = VersionSwitch(first, self._new_core, self._on_switch)
        self._ways: list[tuple[int, VersionCore]] = []
        """The cores whose snapshots the proxy was given, and the numbers of the snapshots before."""
        self._way: tuple[ExpressWay, asyncio.Task[None]] | None = None
        self._queries = SwitchedQueries(self.versions, self._core_of_snapshot)
        self.fleet = SwitchedFleet(self.versions)
        self._collector: TableCollector | None = None
        self._show_sums(limit)
        self._is_serving = self._was_ready = False
        self._rpc = RpcServer(
            bind,
            (QUERY_SERVICE, FLEET_SERVICE),
            self._register,
            settings=settings,
            proxy=self._proxy,
            proxied=self._queries.proxied,
            max_batch_entries=settings.router_max_batch_entries,
            lasting_calls=settings.max_lookups + 2 * settings.max_watches,
            share_port=share_port,
            gate=counted_gate(settings, metrics.security),
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._rpc.port

    def follow(self, readers: Callable[[VersionCore], FleetReaders]) -> None:
        """Have the control topics of each version read by what `readers` makes; begin with the first version's."""
        self._follow = readers
        self.first.readers = readers(self.first)

    async def start(self) -> None:
        """Accept calls; they fail with ROUTING_NOT_READY until the first table."""
        await self._rpc.start()
        self._background.start(self._judge_readiness(), "judge readiness")
        if (verifier := new_verifier(self._settings, lambda: self.versions.serving.fleet, self.metrics)) is not None:
            self._background.start(verifier.run(), "compare replicas")
        if self._proxy is not None:
            self._background.start(show_liveness(self._proxy.link), "show liveness")
            if self.first.express.obstacle is None:
                self._rpc.give_permits()
                self._open_way(self.versions.serving)
        if self.first.readers is not None:
            self.first.readers.start()
        log.info("router listens", address=f"{self._settings.bind_host}:{self.port}")

    def leave(self) -> None:
        """Tell health checks that the router serves no more. It answers all the same until `stop`."""
        self._rpc.health.end()

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, let those under way end within `grace_s` (default: `stop_grace_ms`), close connections."""
        if grace_s is None:
            grace_s = self._settings.stop_grace_ms / 1_000
        for core in self.versions:
            core.tracker.close()
            core.end_watches()
        await self._rpc.stop(grace_s)
        await self._background.cancel()
        await self.versions.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def collect(self) -> None:
        """Have the metrics that are read at each scrape collected."""
        self._collector = TableCollector(self.tables, self.health.suspects, self._silence_s)
        self.metrics.registry.register(self._collector)
        self.metrics.registry.register(ProxyCollector("statehouse_router", self._rpc.proxy_sums, has_express=True))

    def _register(self, server: grpc.aio.Server) -> None:
        self._queries.register(server)
        fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(self.fleet, server)

    def _show_sums(self, limit: LookupLimit) -> None:
        """Have the metrics show what all versions have together."""
        metrics = self.metrics
        metrics.open_lookups.set_function(lambda: limit.under_way)
        metrics.max_lookups.set(self._settings.max_lookups)
        metrics.held.set_function(lambda: sum(core.lookups.holds.held for core in tuple(self.versions)))
        metrics.open_watches.set_function(lambda: sum(core.watches.streams.open for core in tuple(self.versions)))
        metrics.open_fleet_watches.set_function(
            lambda: sum(core.fleet.watches.streams.open for core in tuple(self.versions))
        )

    def _lookups_elsewhere(self) -> int:
        """Return how many lookups are under way that the proxy has sent to nodes on its own."""
        return 0 if self._way is None or self._proxy is None else self._proxy.link.elsewhere

    def _silence_s(self) -> float | None:
        """Return seconds since what the table is made of was last known to be read to its end; None if never."""
        readers = self.versions.serving.readers
        return None if readers is None else readers.silence_s()

    def _new_core(self, version: str) -> VersionCore:
        core = VersionCore(version, self._settings, self._around, self._on_table)
        core.readers = self._follow(core)
        if core.readers is not None:
            core.readers.start()
        return core

    def _open_way(self, core: VersionCore) -> None:
        """Give the proxy the snapshots of a core from now on."""
        if self._proxy is None:
            return
        after = 0
        if self._way is not None:
            way, running = self._way
            after = way.number
            running.cancel()
        way = core.new_way(self._proxy, after)
        core.express.open(way, self._proxy.link)
        self._ways.append((after, core))
        way.refresh()
        self._way = way, self._background.start(way.run(), "express way")

    def _core_of_snapshot(self, number: int) -> VersionCore:
        """Return the core by whose snapshot the proxy has made calls."""
        return next((core for after, core in reversed(self._ways) if number > after), self.versions.serving)

    def _on_switch(self, before: VersionCore, after: VersionCore) -> None:
        if self._way is not None:
            before.express.close()
            self._open_way(after)
            del self._ways[:-_WAYS_KEPT]
        if self._collector is not None:
            self._collector.show(after.tables, after.calls.health.suspects, self._silence_s)
        self._is_serving = after.is_routed
        self._tell_health()

    def _on_table(self, core: VersionCore, table: RoutingTable) -> None:
        self.versions.go_on()
        if core is self.versions.serving and not self._is_serving:
            self._is_serving = True
            log.info("router is ready", epoch=table.epoch, stores=sorted(table.stores), nodes=sorted(table.nodes))
        self._tell_health()
        for store, problem in table.unusable.items():
            log.debug("store can't be routed by this version", store=store, problem=problem)

    async def _judge_readiness(self) -> None:
        while True:
            self._tell_health()
            await asyncio.sleep(_READINESS_JUDGED_EVERY_S)

    def _tell_health(self) -> None:
        silence_s, longest_s = self._silence_s(), self._settings.ready_silence_max_ms / 1_000
        ready = is_ready(has_table=self._is_serving, silence_s=silence_s, longest_s=longest_s)
        if self._was_ready and not ready:
            log.warning("router is not ready: Kafka is silent", silence_s=silence_s, longest_s=longest_s)
        self._was_ready = ready
        self._rpc.health.set(serving=self._is_serving, ready=ready)


async def serve(settings: RouterSettings, stop: StopSignals, *, share_port: bool = False) -> None:
    """Serve until `stop` asks for the end, and for the pause of lame_duck_ms after it.

    `share_port`: as one of several processes on the port.

    Raises:
        Exception: the defect that ended a topic's reader or the proxy; the router has been shut down.

    """
    defects: list[Exception] = []

    def stop_by(defect: Exception) -> None:
        defects.append(defect)
        stop.now()

    server = RouterServer(settings, stop_by, share_port=share_port)
    loop = asyncio.get_running_loop()
    server.follow(
        lambda core: ControlTopicReaders(
            core.settings,
            core.tracker,
            core.inputs,
            core.queries,
            core.controller,
            server.skipped,
            loop,
            stop_by,
            on_versions=server.versions.take if core is server.first else None,
        )
    )
    server.collect()
    metrics_server = serve_metrics(server.metrics.registry, settings, server.metrics.security.denied)
    web = WebProcess(settings, server.port)
    await server.start()
    web.start()
    try:
        await stop.asked.wait()
        if settings.lame_duck_ms and not stop.at_once.is_set():
            log.info("router is about to stop, and answers until then", pause_ms=settings.lame_duck_ms)
            server.leave()
            await is_set_within(stop.at_once, settings.lame_duck_ms / 1_000)
    finally:
        log.info("router stops")
        left = "calls that are under way, the web process and the readers of topics"
        bound = StopDeadline(settings.stop_grace_ms / 1_000 + CLOSE_S, lambda: left)
        await asyncio.gather(web.stop(), server.stop())
        left = "metrics"
        if metrics_server is not None:
            metrics_server.close()
        bound.close()
    if defects:
        raise defects[0]


def run(
    settings: RouterSettings,
    *,
    share_port: bool = False,
    also_stopped_by: Callable[[StopSignals], None] = lambda _stop: None,
) -> None:
    """Run a router until SIGTERM or SIGINT, or until what is given to `also_stopped_by` asks for the end.

    After SIGTERM it goes on for the pause of lame_duck_ms; SIGINT and a second signal end that.
    """
    logs.configure(settings.log_level)

    async def main() -> None:
        stop = stop_signals()
        also_stopped_by(stop)
        try:
            await serve(settings, stop, share_port=share_port)
        finally:
            await end_threads()

    asyncio.run(main())
