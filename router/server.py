"""The router process: follows three control topics, serves one gRPC port, and stops gracefully."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import grpc.aio
import structlog

from router.calls.attempts import Attempts
from router.calls.channels import QUERY_SERVICE, NodeChannels
from router.calls.coalesce import Coalescer
from router.calls.express_way import ExpressWay
from router.calls.group_calls import GroupCalls
from router.calls.health import NodeHealth
from router.calls.liveness import show_liveness
from router.choice.answer_times import AnswerTimes
from router.choice.budget import RetryBudget
from router.choice.express import NO_SNAPSHOT, ExpressLimits, Obstacle, standing_obstacle
from router.choice.hold import HoldLimits, Holds
from router.fleet.current_table import CurrentTable
from router.fleet.readiness import is_ready, longest_silence_s
from router.fleet.table import PartitionRoutes, RoutingTable
from router.fleet.tracker import FleetTracker
from router.fleet_api.inputs import Inputs
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from router.lookups.batch import BatchGetter
from router.lookups.dispatch import Dispatcher
from router.lookups.explain import Explainer
from router.lookups.keyed import KeyLookups
from router.lookups.limit import LookupLimit
from router.lookups.observed import LookupObserver
from router.lookups.scatter import Scatter
from router.service import FLEET_SERVICE, FleetServicer, QueryHandlers
from router.telemetry.collector import TableCollector
from router.telemetry.metrics import RouterMetrics
from router.watches.watch_relay import WatchRelay, WatchTimeouts
from router.web import WebProcess
from statehouse.assignment import CONTROLLER_KEY, AssignmentReader, read_controller_record
from statehouse.background import BackgroundWork, as_error
from statehouse.clocks import process_clock
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader, OnRecord
from statehouse.membership import decode_member
from statehouse.observability import logs
from statehouse.observability.denials import counted_gate
from statehouse.observability.lookup_log import LookupLog
from statehouse.observability.metrics import serve_metrics
from statehouse.observability.proxy_sums import ProxyCollector
from statehouse.observability.tracing import tracing_for
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.processor_reports import ReportTimes, decode_commit, record_age_s, written_at_s
from statehouse.rpc.credentials import ClientTls, CredentialFiles
from statehouse.rpc.deadline import RequestTimes
from statehouse.rpc.proxy import proxy_for
from statehouse.rpc.server import RpcServer
from statehouse.security.settings_gate import gates_named
from statehouse.settings import RouterSettings
from statehouse.stop_deadline import CLOSE_S, StopDeadline, end_threads
from statehouse.topology import assignment_topic, commits_topic, members_topic
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from statehouse.waiting import StopSignals, is_set_within, stop_signals

log = structlog.get_logger(__name__)

_READINESS_JUDGED_EVERY_S: Final = 0.5


class RouterServer:
    """A router. `ControlTopicReaders` feeds `tracker`, `inputs`, `queries` and `controller` from the control topics."""

    def __init__(
        self, settings: RouterSettings, on_broken: Callable[[Exception], None], *, share_port: bool = False
    ) -> None:
        """Build everything and bind the port; must run on the event loop that will serve.

        `on_broken(error)` is called when callers can't reach the router any more, or it can't follow the fleet.
        `share_port`: several processes share
        that port.
        """
        attempt_timeout_s = settings.attempt_timeout_ms / 1_000
        self._settings = settings
        self.metrics = RouterMetrics()
        self.skipped = UnreadableRecords(self.metrics.registry, "statehouse_router")
        self.tables = CurrentTable()
        bind = f"{settings.bind_host}:{settings.router_port}"
        self._tracing = tracing_for(settings.tracing_endpoint, "router")
        proxy = proxy_for(
            settings,
            bind,
            on_broken,
            share_port=share_port,
            is_traced=self._tracing is not None,
            server_name=settings.tls_node_name,
        )
        lookup_log = LookupLog(settings.lookup_log_sample, has_keys=settings.lookup_log_keys)
        observer = LookupObserver(lookup_log, self._tracing)
        self._proxy, self._background = proxy, BackgroundWork()
        self._express: ExpressWay | None = None
        self._express_obstacle = standing_obstacle(
            is_on=settings.express, has_proxy=proxy is not None, gates=gates_named(settings)
        )
        self.channels = NodeChannels(
            proxy,
            max_message_bytes=settings.max_message_bytes,
            close_grace_s=min(settings.stop_grace_ms / 1_000, 2 * attempt_timeout_s),
            files=_files_for_nodes(settings),
        )
        self.health = NodeHealth(
            self.channels.probe,
            probe_timeout_s=attempt_timeout_s,
            on_suspicion=self.metrics.suspicion,
            on_change=self._refresh_express,
            on_pause=self.metrics.paused,
        )
        self._answer_times = AnswerTimes(
            quantile=settings.hedge_quantile, least_s=settings.hedge_min_ms / 1_000, most_s=attempt_timeout_s
        )
        self.coalescer = Coalescer(self.channels.ask, self.metrics, max_message_bytes=settings.max_message_bytes)
        attempts = Attempts(self.coalescer.ask, self.health, self._answer_times)
        self.tracker = FleetTracker(
            self.tables,
            self._on_table,
            session_timeout_s=settings.session_timeout_ms / 1_000,
            rack=settings.router_rack,
            on_defect=on_broken,
        )
        budget = RetryBudget(settings.retry_budget_percent, settings.retry_budget_per_s)
        self._holds = Holds(
            HoldLimits(
                window_s=settings.hold_window_ms / 1_000,
                most=settings.hold_max,
                min_interval_s=settings.hold_min_interval_ms / 1_000,
            )
        )
        self.metrics.held.set_function(lambda: self._holds.held)
        dispatcher = Dispatcher(
            self.tables, attempts, budget, self.metrics, attempt_timeout_s=attempt_timeout_s, holds=self._holds
        )
        keys = KeyLookups(self.tables, dispatcher)
        limit = LookupLimit(settings.max_lookups, self._lookups_elsewhere)
        self.metrics.open_lookups.set_function(lambda: limit.under_way)
        self.metrics.max_lookups.set(settings.max_lookups)
        calls = GroupCalls(self.tables, attempts, budget, self.metrics, attempt_timeout_s=attempt_timeout_s)
        batches = BatchGetter(
            self.tables,
            limit,
            calls,
            keys,
            self.metrics,
            max_entries=settings.router_max_batch_entries,
            max_message_bytes=settings.max_message_bytes,
            on_failed=lambda store, reason, lookups: observer.failed(store, "BatchGet", reason, lookups),
        )
        scatter = Scatter(self.tables, calls, dispatcher, self.metrics, max_message_bytes=settings.max_message_bytes)
        self.watches = WatchRelay(
            self.tables,
            self.health,
            self.channels.stream,
            dispatcher,
            self.metrics,
            timeouts=WatchTimeouts(settings.request_timeout_ms / 1_000, settings.watch_resume_timeout_ms / 1_000),
            max_watches=settings.max_watches,
            max_watches_per_address=settings.max_watches_per_address,
            max_partitions=settings.max_watched_partitions,
        )
        self.metrics.open_watches.set_function(lambda: self.watches.streams.open)
        times = RequestTimes(settings.request_timeout_ms / 1_000, settings.max_timeout_ms / 1_000)
        self._handlers = QueryHandlers(
            self.tables,
            limit,
            keys,
            batches,
            scatter,
            self.watches,
            self.metrics,
            times,
            observer,
        )
        self.inputs, self.queries, self.controller = Inputs(), ProcessorQueries(), ControllerReport()
        self.fleet = FleetServicer(
            settings.application_id,
            self.tables,
            self.tracker,
            self.health,
            self.inputs,
            self.queries,
            self.controller,
            Explainer(self.tables, limit, keys, self.health, self._answer_times, self._express_obstacle_to),
            served_by=self._served_by,
            times=times,
            max_watches=settings.max_watches,
            max_watches_per_address=settings.max_watches_per_address,
        )
        self.metrics.open_fleet_watches.set_function(lambda: self.fleet.watches.streams.open)
        self._is_serving = self._was_ready = False
        self._silence_s: Callable[[], float | None] = lambda: None
        self._budget = budget
        self._rpc = RpcServer(
            bind,
            (QUERY_SERVICE, FLEET_SERVICE),
            self._register,
            settings=settings,
            proxy=proxy,
            proxied=self._handlers.proxied,
            max_batch_entries=settings.router_max_batch_entries,
            lasting_calls=settings.max_lookups + 2 * settings.max_watches,
            share_port=share_port,
            gate=counted_gate(settings, self.metrics.security),
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
        if self._proxy is not None:
            self._background.start(show_liveness(self._proxy.link), "show liveness")
        if self._proxy is not None and self._express_obstacle is None:
            self._express = ExpressWay(
                self._proxy.link,
                self.tables,
                self.health,
                self._answer_times,
                self._budget,
                self.metrics,
                bounds=ExpressLimits(
                    self._settings.max_lookups,
                    self._settings.router_max_batch_entries,
                    self._settings.attempt_timeout_ms / 1_000,
                ),
            )
            self._background.start(self._express.run(), "express way")
        log.info("router listens", address=f"{self._settings.bind_host}:{self.port}")

    def leave(self) -> None:
        """Tell health checks that the router serves no more. It answers all the same until `stop`."""
        self._rpc.leave()

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

    def _refresh_express(self) -> None:
        if self._express is not None:
            self._express.refresh()

    @property
    def _served_by(self) -> fleet_service_pb2.ServedBy.ValueType:
        if self._proxy is None:
            return fleet_service_pb2.SERVED_BY_GRPCIO
        if self._express_obstacle is not None:
            return fleet_service_pb2.SERVED_BY_PROXY
        return fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY

    def _express_obstacle_to(self, request: bytes, routes: PartitionRoutes) -> Obstacle | None:
        if self._express is None:
            return self._express_obstacle or NO_SNAPSHOT
        return self._express.obstacle_to(request, routes)

    def _lookups_elsewhere(self) -> int:
        return 0 if self._express is None or self._proxy is None else self._proxy.link.elsewhere

    def _on_table(self, table: RoutingTable) -> None:
        self.channels.retain(table.nodes)
        self.health.retain(table.nodes)
        self._answer_times.retain(table.nodes.keys(), table.stores.keys())
        self._holds.retain(table.stores.keys())
        self._refresh_express()
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
        self._rpc.set_serving(serving=self._is_serving, ready=ready)


def _files_for_nodes(settings: RouterSettings) -> CredentialFiles | None:
    """Return what to call nodes with; None if nothing is encrypted."""
    if settings.tls_certificate is None:
        return None
    name = settings.tls_node_name
    return CredentialFiles(ClientTls(settings.tls_ca, settings.tls_certificate, settings.tls_key, server_name=name))


class ControlTopicReaders:
    """The readers of the control topics: their threads decode records and hand them to the event loop.

    `on_broken(error)` is called on the event loop when a defect has ended a reader, or what a record leads to has one:
    a router that lacks a record would only look healthy.
    """

    def __init__(
        self,
        settings: RouterSettings,
        tracker: FleetTracker,
        inputs: Inputs,
        queries: ProcessorQueries,
        controller: ControllerReport,
        skipped: UnreadableRecords,
        loop: asyncio.AbstractEventLoop,
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._tracker, self._inputs, self._queries, self._loop = tracker, inputs, queries, loop
        self._controller, self._on_broken = controller, on_broken
        self._assignments = AssignmentReader(partial(skipped.note, "assignment"))
        self._skipped = skipped

        def reader(
            kind: str,
            topic: str,
            on_record: OnRecord,
            on_contact: Callable[[], None] = lambda: None,
            on_anew: Callable[[], None] = lambda: None,
        ) -> ControlLogReader:
            return ControlLogReader(
                settings.brokers,
                topic,
                on_record,
                client_id=f"{settings.application_id}-router",
                on_broken=lambda error: self._call_on_loop(on_broken, error),
                on_contact=on_contact,
                on_anew=on_anew,
                on_refused=partial(skipped.note, kind),
                on_unsigned=partial(skipped.unsigned, kind),
            )

        name = settings.application_id
        self._assignment_log = reader(
            "assignment",
            assignment_topic(name),
            self._on_assignment_record,
            self._on_assignments_read,
            self._assignments.begin,
        )
        self._assignments.begin()
        self._member_log = reader(
            "members",
            members_topic(name),
            self._on_member_record,
            lambda: self._call_on_loop(tracker.on_caught_up, "members"),
        )
        self._report_times = ReportTimes()
        self._commit_log = reader("commits", commits_topic(name), self._on_commit_record)
        self._logs = (self._assignment_log, self._member_log, self._commit_log)

    def silence_s(self) -> float | None:
        """Return seconds since assignment and heartbeats were last known to be read to their ends; None if never."""
        return longest_silence_s(each.seconds_since_contact() for each in (self._assignment_log, self._member_log))

    def start(self) -> None:
        """Begin to read."""
        for each in self._logs:
            each.start()

    async def stop(self) -> None:
        """Stop reading; the wait for the threads does not hold up the loop."""
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in self._logs))

    def _on_assignment_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if key == CONTROLLER_KEY:
            self._on_controller_record(value, timestamp_ms)
            return
        assignment = self._assignments.feed(key, value)
        if assignment is not None:
            self._call_on_loop(self._tracker.on_assignment, assignment)

    def _on_assignments_read(self) -> None:
        assignment = self._assignments.end_reached()
        if assignment is not None:
            self._call_on_loop(self._tracker.on_first_assignment, assignment)
        self._call_on_loop(self._tracker.on_caught_up, "assignment")

    def _on_controller_record(self, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            return
        try:
            record = read_controller_record(value)
        except ContractError as error:
            self._skipped.note("assignment", CONTROLLER_KEY, error)
            return
        now_s, silence_s = time.monotonic(), self._assignment_log.seconds_since_contact()
        at_s = written_at_s(timestamp_ms, now_s, process_clock().now_ms(), silence_s)
        self._call_on_loop(self._controller.on_record, record.controller, at_s)

    def _on_member_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            self._call_on_loop(self._tracker.on_member_left, (key or b"").decode(errors="replace"))
            return
        try:
            member = decode_member(key, value, timestamp_ms, process_clock().now_ms())
        except ContractError as error:
            self._skipped.note("members", key, error)
            return
        self._call_on_loop(self._tracker.on_member, member, self._age_s(self._member_log, timestamp_ms))

    def _on_commit_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            store = (key or b"").decode(errors="replace")
            self._call_on_loop(self._queries.on_reset, store)
            self._call_on_loop(self._inputs.on_reset, store)
            return
        try:
            commit = decode_commit(key, value)
        except ContractError as error:
            self._skipped.note("commits", key, error)
            return
        self._call_on_loop(self._inputs.on_commit, commit)
        now_s, silence_s = time.monotonic(), self._commit_log.seconds_since_contact()
        at_s = self._report_times.written_at_s(commit, timestamp_ms, now_s, process_clock().now_ms(), silence_s)
        self._call_on_loop(self._queries.on_commit, commit, at_s, timestamp_ms)

    @staticmethod
    def _age_s(log: ControlLogReader, timestamp_ms: int) -> float:
        """Return the age of a record that was read just now.

        Records from before the start must not look fresh. Later ones count as new: other machines' clocks may differ.
        """
        return 0.0 if log.caught_up else record_age_s(timestamp_ms, process_clock().now_ms())

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(self._or_break, callback, *args)
        except RuntimeError:  # the loop is closed: the process is ending
            log.debug("record after the end")

    def _or_break(self, callback: Callable[..., None], *args: object) -> None:
        try:
            callback(*args)
        except BaseException as caught:  # noqa: BLE001 - `serve` raises it
            self._on_broken(as_error(caught))


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
