"""The router process: two control topics followed, one gRPC port served, a graceful end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from router.admission import Admission
from router.attempts import Attempts
from router.batch import BatchGetter
from router.budget import RetryBudget
from router.channels import QUERY_SERVICE, NodeChannels
from router.coalesce import Coalescer
from router.dispatch import Dispatcher
from router.explain import Explainer
from router.fleet import FleetTracker
from router.group_calls import GroupCalls
from router.health import NodeHealth
from router.hold import HoldLimits, Holds
from router.holder import TableHolder
from router.inputs import Inputs
from router.lateness import Lateness
from router.metrics import RouterMetrics
from router.queries import Queries
from router.scatter import Scatter
from router.service import FLEET_SERVICE, FleetServicer, QueryHandlers
from router.table import RoutingTable
from router.watch import Patience, WatchRelay
from statehouse.assignment import AssignmentReader
from statehouse.control.v1 import commits_pb2
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader, OnRecord
from statehouse.membership import decode_member
from statehouse.observability import logs
from statehouse.observability.metrics import MetricsServer
from statehouse.rpc.proxy import proxy_for
from statehouse.rpc.server import RpcServer
from statehouse.settings import RouterSettings
from statehouse.topology import assignment_topic, commits_topic, members_topic
from statehouse.v1 import fleet_service_pb2_grpc

log = structlog.get_logger(__name__)

# Longest that calls under way may go on once the process has been told to stop.
_STOP_GRACE_S = 5.0


class RouterServer:
    """A router. `tracker`, `inputs` and `queries` take what the control topics say; `FleetFollower` feeds them."""

    def __init__(
        self, settings: RouterSettings, on_broken: Callable[[Exception], None], *, share_port: bool = False
    ) -> None:
        """Build everything and bind the port; must run on the event loop that will serve.

        `on_broken(error)` is called when nobody can reach it any more. `share_port`: it is one of several on that port.
        """
        attempt_timeout_s = settings.attempt_timeout_ms / 1_000
        self._settings = settings
        self.metrics = RouterMetrics()
        self.tables = TableHolder()
        bind = f"{settings.bind_host}:{settings.router_port}"
        proxy = proxy_for(settings, bind, on_broken, share_port=share_port)
        self.channels = NodeChannels(
            proxy,
            max_message_bytes=settings.max_message_bytes,
            close_grace_s=min(_STOP_GRACE_S, 2 * attempt_timeout_s),
        )
        self.health = NodeHealth(
            self.channels.probe, probe_timeout_s=attempt_timeout_s, on_suspicion=self.metrics.suspicion
        )
        self._lateness = Lateness(
            quantile=settings.hedge_quantile, least_s=settings.hedge_min_ms / 1_000, most_s=attempt_timeout_s
        )
        self.coalescer = Coalescer(self.channels.ask, self.metrics, max_message_bytes=settings.max_message_bytes)
        attempts = Attempts(self.coalescer.ask, self.health, self._lateness)
        self.tracker = FleetTracker(
            self.tables,
            self._on_table,
            session_timeout_s=settings.session_timeout_ms / 1_000,
            rack=settings.router_rack,
        )
        budget = RetryBudget(settings.retry_budget_percent)
        self._holds = Holds(
            HoldLimits(
                window_s=settings.hold_window_ms / 1_000,
                most=settings.hold_max,
                min_interval_s=settings.hold_min_interval_ms / 1_000,
                is_dry_run=settings.hold_dry_run,
            )
        )
        self.metrics.held.set_function(lambda: self._holds.held)
        dispatcher = Dispatcher(
            self.tables, attempts, budget, self.metrics, attempt_timeout_s=attempt_timeout_s, holds=self._holds
        )
        admission = Admission(settings.max_lookups)
        self.metrics.open_lookups.set_function(lambda: admission.under_way)
        calls = GroupCalls(self.tables, attempts, budget, self.metrics, attempt_timeout_s=attempt_timeout_s)
        batches = BatchGetter(
            self.tables,
            admission,
            calls,
            dispatcher,
            self.metrics,
            max_message_bytes=settings.max_message_bytes,
        )
        scatter = Scatter(self.tables, calls, dispatcher, self.metrics, max_message_bytes=settings.max_message_bytes)
        self.watches = WatchRelay(
            self.tables,
            self.health,
            self.channels.stream,
            dispatcher,
            self.metrics,
            patience=Patience(settings.request_timeout_ms / 1_000, settings.watch_resume_timeout_ms / 1_000),
            max_watches=settings.max_watches,
        )
        self.metrics.open_watches.set_function(lambda: self.watches.streams.open)
        self._handlers = QueryHandlers(
            self.tables,
            admission,
            dispatcher,
            batches,
            scatter,
            self.watches,
            self.metrics,
            settings.request_timeout_ms / 1_000,
        )
        self.inputs, self.queries = Inputs(), Queries()
        self.fleet = FleetServicer(
            settings.application_id,
            self.tables,
            self.tracker,
            self.health,
            self.inputs,
            self.queries,
            Explainer(self.tables, admission, dispatcher, self._lateness),
            default_timeout_s=settings.request_timeout_ms / 1_000,
            max_watches=settings.max_watches,
        )
        self.metrics.open_fleet_watches.set_function(lambda: self.fleet.watches.streams.open)
        self._is_serving = False
        self._ready: asyncio.Task[None] | None = None
        self._rpc = RpcServer(
            bind,
            (QUERY_SERVICE, FLEET_SERVICE),
            self._register,
            max_message_bytes=settings.max_message_bytes,
            proxy=proxy,
            quick=self._handlers.quick,
            share_port=share_port,
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._rpc.port

    async def start(self) -> None:
        """Accept calls; they fail with ROUTING_NOT_READY until the first table."""
        await self._rpc.start()
        log.info("router listens", address=f"{self._settings.bind_host}:{self.port}")

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Refuse new calls, let those under way end within `grace_s`, close the connections."""
        self.tracker.close()
        if self._ready is not None:
            await self._ready
        self.watches.streams.stop()
        self.fleet.watches.streams.stop()
        await self._rpc.stop(grace_s)
        await self.health.close()
        await self.channels.close()

    def _register(self, server: grpc.aio.Server) -> None:
        self._handlers.register(server)
        fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(self.fleet, server)

    def _on_table(self, table: RoutingTable) -> None:
        self.channels.retain(table.nodes)
        self.health.retain(table.nodes)
        self._lateness.retain(table.nodes.keys(), table.stores.keys())
        self._holds.retain(table.stores.keys())
        if not self._is_serving:
            self._is_serving = True
            log.info("router is ready", epoch=table.epoch, stores=sorted(table.stores), nodes=sorted(table.nodes))
            self._ready = asyncio.create_task(self._rpc.set_serving(serving=True))
        for store, problem in table.unusable.items():
            log.debug("store can't be routed by this version", store=store, problem=problem)


class FleetFollower:
    """The readers, whose threads decode records and hand them to the event loop.

    `on_broken(error)` is called there when one of them has ended by a defect.
    """

    def __init__(
        self,
        settings: RouterSettings,
        tracker: FleetTracker,
        inputs: Inputs,
        queries: Queries,
        loop: asyncio.AbstractEventLoop,
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._tracker, self._inputs, self._queries, self._loop = tracker, inputs, queries, loop
        self._assignments = AssignmentReader(on_unreadable=_report_unreadable)

        def reader(topic: str, on_record: OnRecord, on_contact: Callable[[], None] = lambda: None) -> ControlLogReader:
            return ControlLogReader(
                settings.bootstrap,
                topic,
                on_record,
                client_id=f"{settings.application_id}-router",
                on_broken=lambda error: self._hand_over(on_broken, error),
                on_contact=on_contact,
            )

        name = settings.application_id
        self._assignment_log = reader(
            assignment_topic(name),
            self._on_assignment_record,
            lambda: self._hand_over(tracker.on_caught_up, "assignment"),
        )
        self._member_log = reader(
            members_topic(name), self._on_member_record, lambda: self._hand_over(tracker.on_caught_up, "members")
        )
        self._commit_log = reader(commits_topic(name), self._on_commit_record)
        self._logs = (self._assignment_log, self._member_log, self._commit_log)

    def start(self) -> None:
        """Begin to read."""
        for each in self._logs:
            each.start()

    async def stop(self) -> None:
        """Stop reading; the wait for the threads does not hold up the loop."""
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in self._logs))

    def _on_assignment_record(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        assignment = self._assignments.feed(key, value)
        if assignment is not None:
            self._hand_over(self._tracker.on_assignment, assignment)

    def _on_member_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            self._hand_over(self._tracker.on_member_left, (key or b"").decode(errors="replace"))
            return
        try:
            member = decode_member(value)
        except ContractError as error:
            _report_unreadable((key or b"").decode(errors="replace"), error)
            return
        self._hand_over(self._tracker.on_member, member, self._age_s(self._member_log, timestamp_ms))

    def _on_commit_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            self._hand_over(self._queries.on_reset, (key or b"").decode(errors="replace"))
            return
        try:
            commit = commits_pb2.Commit.FromString(value)
        except DecodeError as error:
            _report_unreadable((key or b"").decode(errors="replace"), error)
            return
        self._hand_over(self._inputs.on_commit, commit)
        written_at_s = time.monotonic() - self._age_s(self._commit_log, timestamp_ms)
        self._hand_over(self._queries.on_commit, commit, written_at_s)

    @staticmethod
    def _age_s(log: ControlLogReader, timestamp_ms: int) -> float:
        """Return the age of a record that was read just now.

        Those from before this process started would look fresh; those of now would suffer from clock skew.
        """
        return 0.0 if log.caught_up else max(0.0, time.time() - timestamp_ms / 1_000)

    def _hand_over(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: the process is ending
            log.debug("record after the end")


def _report_unreadable(key: str, error: Exception) -> None:
    log.warning("control record can't be read and is skipped", key=key, error=str(error))


async def serve(settings: RouterSettings, stop: asyncio.Event, *, share_port: bool = False) -> None:
    """Serve until `stop` is set, with `share_port` as one of several on the port.

    Raises:
        Exception: a defect without which the table would only look current; the router has been shut down.

    """
    defects: list[Exception] = []

    def stop_by(defect: Exception) -> None:
        defects.append(defect)
        stop.set()

    server = RouterServer(settings, stop_by, share_port=share_port)
    follower = FleetFollower(
        settings, server.tracker, server.inputs, server.queries, asyncio.get_running_loop(), stop_by
    )
    metrics_server = None
    if settings.metrics_port is not None:
        metrics_server = MetricsServer(server.metrics.registry, settings.bind_host, settings.metrics_port)
    await server.start()
    follower.start()
    try:
        await stop.wait()
    finally:
        log.info("router stops")
        await server.stop()
        await follower.stop()
        if metrics_server is not None:
            metrics_server.close()
    if defects:
        raise defects[0]


def run(
    settings: RouterSettings,
    *,
    share_port: bool = False,
    also_stopped_by: Callable[[asyncio.Event], None] = lambda _stop: None,
) -> None:
    """Run a router until SIGTERM or SIGINT, or until what `also_stopped_by` has arranged for sets the event."""
    logs.configure(settings.log_level)

    async def main() -> None:
        stop = asyncio.Event()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
        also_stopped_by(stop)
        await serve(settings, stop, share_port=share_port)

    asyncio.run(main())
