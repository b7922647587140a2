"""The router process: serves one gRPC port by what the control topics say, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc.aio
import structlog

from router.calls.channels import QUERY_SERVICE
from router.calls.liveness import show_liveness
from router.control_topics import ControlTopicReaders
from router.fleet.current_table import CurrentTable
from router.fleet.readiness import is_ready
from router.fleet.table import RoutingTable
from router.fleet.tracker import FleetTracker
from router.fleet_api.inputs import Inputs
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from router.lookups.explain import Explainer
from router.service import FLEET_SERVICE, FleetServicer, QueryHandlers
from router.telemetry.collector import TableCollector
from router.telemetry.metrics import RouterMetrics
from router.web import WebProcess
from router.wiring import (
    new_calls,
    new_express_door,
    new_express_way,
    new_lookups,
    new_verifier,
    new_watches,
    request_times,
)
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
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc

log = structlog.get_logger(__name__)

_READINESS_JUDGED_EVERY_S: Final = 0.5


class RouterServer:
    """A router. `ControlTopicReaders` feeds `tracker`, `inputs`, `queries` and `controller` from the control topics."""

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
        self.tables = CurrentTable()
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
        self._express = new_express_door(settings, has_proxy=self._proxy is not None)
        self._calls = calls = new_calls(settings, self._proxy, metrics, self._express.refresh)
        self.channels, self.health, self.coalescer = calls.channels, calls.health, calls.coalescer
        self.tracker = FleetTracker(
            self.tables,
            self._on_table,
            session_timeout_s=settings.session_timeout_ms / 1_000,
            rack=settings.router_rack,
            on_defect=on_broken,
        )
        self.inputs, self.queries, self.controller = Inputs(), ProcessorQueries(), ControllerReport()
        self._lookups = lookups = new_lookups(
            settings,
            self.tables,
            calls,
            metrics,
            self._tracing,
            self._express.lookups_elsewhere,
            self.queries.newest_moment,
        )
        self.watches = new_watches(settings, self.tables, calls, lookups.dispatcher, metrics)
        self._handlers = QueryHandlers(self.tables, lookups, self.watches, metrics, request_times(settings))
        self.fleet = FleetServicer(
            settings.application_id,
            self.tables,
            self.tracker,
            self.health,
            self.inputs,
            self.queries,
            self.controller,
            Explainer(
                self.tables, lookups.limit, lookups.keys, self.health, calls.answer_times, self._express.obstacle_to
            ),
            served_by=self._served_by,
            times=request_times(settings),
            max_watches=settings.max_watches,
            max_watches_per_address=settings.max_watches_per_address,
        )
        metrics.open_fleet_watches.set_function(lambda: self.fleet.watches.streams.open)
        self._is_serving = self._was_ready = False
        self._silence_s: Callable[[], float | None] = lambda: None
        self._rpc = RpcServer(
            bind,
            (QUERY_SERVICE, FLEET_SERVICE),
            self._register,
            settings=settings,
            proxy=self._proxy,
            proxied=self._handlers.proxied,
            max_batch_entries=settings.router_max_batch_entries,
            lasting_calls=settings.max_lookups + 2 * settings.max_watches,
            share_port=share_port,
            gate=counted_gate(settings, metrics.security),
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._rpc.port

    async def start(self, silence_s: Callable[[], float | None] = lambda: None) -> None:
        """Accept calls; they fail with ROUTING_NOT_READY until the first table.

        `silence_s()`: seconds since what the table is made of was last known to be read to its end; None if never.
        """
        self._silence_s = silence_s
        await self._rpc.start()
        self._background.start(self._judge_readiness(), "judge readiness")
        if (verifier := new_verifier(self._settings, self.fleet, self.metrics)) is not None:
            self._background.start(verifier.run(), "compare replicas")
        if self._proxy is not None:
            self._background.start(show_liveness(self._proxy.link), "show liveness")
            if self._express.obstacle is None:
                self._rpc.give_permits()
                way = new_express_way(self._settings, self._proxy, self.tables, self._calls, self.metrics)
                self._express.open(way, self._proxy.link)
                self._background.start(way.run(), "express way")
        log.info("router listens", address=f"{self._settings.bind_host}:{self.port}")

    def leave(self) -> None:
        """Tell health checks that the router serves no more. It answers all the same until `stop`."""
        self._rpc.health.end()

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, let those under way end within `grace_s` (default: `stop_grace_ms`), close connections."""
        if grace_s is None:
            grace_s = self._settings.stop_grace_ms / 1_000
        self.tracker.close()
        self.watches.streams.stop()
        self.fleet.watches.streams.stop()
        await self._rpc.stop(grace_s)
        await self._background.cancel()
        await self.health.close()
        await self.channels.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def collect(self, kafka_silence_s: Callable[[], float | None]) -> None:
        """Have the metrics that are read at each scrape collected; `kafka_silence_s` is as for `TableCollector`."""
        self.metrics.registry.register(TableCollector(self.tables, self.health.suspects, kafka_silence_s))
        self.metrics.registry.register(ProxyCollector("statehouse_router", self._rpc.proxy_sums, has_express=True))

    def _register(self, server: grpc.aio.Server) -> None:
        self._handlers.register(server)
        fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(self.fleet, server)

    @property
    def _served_by(self) -> fleet_service_pb2.ServedBy.ValueType:
        if self._proxy is None:
            return fleet_service_pb2.SERVED_BY_GRPCIO
        if self._express.obstacle is not None:
            return fleet_service_pb2.SERVED_BY_PROXY
        return fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY

    def _on_table(self, table: RoutingTable) -> None:
        self.channels.retain(table.nodes)
        self.health.retain(table.nodes)
        self._calls.answer_times.retain(table.nodes.keys(), table.stores.keys())
        self._lookups.holds.retain(table.stores.keys())
        self._express.refresh()
        if not self._is_serving:
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
    follower = ControlTopicReaders(
        settings,
        server.tracker,
        server.inputs,
        server.queries,
        server.controller,
        server.skipped,
        asyncio.get_running_loop(),
        stop_by,
    )
    server.collect(follower.silence_s)
    metrics_server = serve_metrics(server.metrics.registry, settings, server.metrics.security.denied)
    web = WebProcess(settings, server.port)
    await server.start(follower.silence_s)
    follower.start()
    web.start()
    try:
        await stop.asked.wait()
        if settings.lame_duck_ms and not stop.at_once.is_set():
            log.info("router is about to stop, and answers until then", pause_ms=settings.lame_duck_ms)
            server.leave()
            await is_set_within(stop.at_once, settings.lame_duck_ms / 1_000)
    finally:
        log.info("router stops")
        left = "calls that are under way, and the web process"
        bound = StopDeadline(settings.stop_grace_ms / 1_000 + CLOSE_S, lambda: left)
        await asyncio.gather(web.stop(), server.stop())
        left = "the readers of topics"
        await follower.stop()
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
