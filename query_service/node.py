"""The node: one process that follows the assignment, keeps its tasks, tells the fleet and answers reads."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from query_service.admission import Admission
from query_service.collector import NodeCollector, NodeFacts
from query_service.disk import StateDirectory
from query_service.lifecycle import NodeState
from query_service.listeners import Listener, Listeners
from query_service.log_listener import LogListener
from query_service.log_reader import LogReader
from query_service.lookup import LookupEngine
from query_service.metrics import NodeMetrics
from query_service.open_scans import OpenScans
from query_service.ownership import InstanceIdTaken, NodeOwnership, active_tasks
from query_service.position_waits import PositionWaits
from query_service.progress import progress_listener
from query_service.replica import monotonic_and_wall_ms
from query_service.replication import EndOffsetWatcher
from query_service.scans import ScanEngine
from query_service.service import SERVICES, register, servicer_of
from query_service.stores.resources import StoreResources
from query_service.tasks import TaskManager
from query_service.view import view_of
from query_service.watching import WatchEngine
from statehouse.assignment import AssignmentReader
from statehouse.errors import ContractError
from statehouse.kafka import clients
from statehouse.kafka.control_log import ControlLogReader
from statehouse.membership import Member, encode_member
from statehouse.observability.metrics import MetricsServer
from statehouse.rpc.proxy import proxy_for
from statehouse.rpc.server import RpcServer
from statehouse.settings import NodeSettings
from statehouse.topology import TaskId, assignment_topic, members_topic
from statehouse.v1 import types_pb2
from statehouse.waiting import is_set_within

log = structlog.get_logger(__name__)

_CHECKPOINT_INTERVAL_S = 10.0
_STOP_GRACE_S = 2.0
_DRAIN_POLL_S = 0.1
_VERSION = version("statehouse")  # read once: it is looked for in files
_SWITCH_INTERVAL_S = 0.0005
_LISTENERS_END_S = 1.0
_CLEANUP_PAUSE_MIN_S, _CLEANUP_PAUSE_MAX_S = 0.1, 60.0


class QueryNode:
    """A query node. `run()` serves until it is told to stop; `stop(drain=...)` tells it."""

    def __init__(self, settings: NodeSettings, listeners: Sequence[Listener] = ()) -> None:
        """Take the settings; `listeners` are told of what happens, beside those of installed packages."""
        self._settings = settings
        self.metrics = NodeMetrics()
        self._listeners = Listeners()
        self._listeners.add("log", LogListener())
        self._listeners.add("metrics", self.metrics)
        self._listeners.add("progress", progress_listener())
        for listener in listeners:
            self._listeners.add(type(listener).__name__, listener)
        self._listeners.add_installed()
        self._loop = asyncio.get_running_loop()
        instance_id = settings.instance_id or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._ownership = NodeOwnership(
            instance_id,
            secrets.token_hex(8),
            monotonic_and_wall_ms()[1],
            session_timeout_s=settings.session_timeout_ms / 1000,
            dynamic=not settings.instance_id,
            reader=AssignmentReader(_report_unreadable),
        )
        self._heartbeat_due = asyncio.Event()
        self._members_known = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._drain = True
        self._drain_timeout_s = settings.drain_timeout_ms / 1000
        self._defect: Exception | None = None

        client_id = f"{settings.application_id}-{instance_id}"
        directory = StateDirectory(settings.state_dir, settings.application_id)
        self.resources = StoreResources(
            block_cache_bytes=settings.block_cache_bytes,
            write_buffer_bytes=settings.write_buffer_bytes,
            memory_store_max_bytes=settings.memory_store_max_bytes,
        )
        self.tasks = TaskManager(
            settings.bootstrap,
            client_id,
            directory,
            self._task_changed,
            self._thread_broke,
            self._listeners,
            self.metrics,
            resources=self.resources,
            restore_batch_records=settings.restore_batch_records,
            tail_bytes=settings.watch_tail_bytes,
            ends_hold_s=settings.session_timeout_ms / 1000,
            cleanup_delay_s=settings.state_cleanup_delay_ms / 1000,
        )
        self._ends = EndOffsetWatcher(
            settings.bootstrap,
            client_id,
            settings.confirm_interval_ms / 1000,
            self.tasks.store_replicas,
            self._thread_broke,
        )
        self._assignment_log = ControlLogReader(
            settings.bootstrap,
            assignment_topic(settings.application_id),
            self._on_loop(self._assignment_record),
            client_id=client_id,
            on_broken=self._thread_broke,
            confirm_interval_s=settings.heartbeat_interval_ms / 2000,
        )
        self._members_log = ControlLogReader(
            settings.bootstrap,
            members_topic(settings.application_id),
            self._on_loop(self._member_record),
            client_id=client_id,
            on_contact=self._members_in_touch,
            on_broken=self._thread_broke,
        )
        self._client_id = client_id
        self._producer = self._new_producer()
        self._is_producer_lost = False
        self._host = types_pb2.Host(instance_id=instance_id, host=settings.advertised_host or settings.bind_host)
        self._admission = Admission(self._host, self.tasks.replicas, self._is_confirmed)
        self.open_scans = OpenScans(max_open=settings.max_open_scans, timeout_s=settings.scan_timeout_ms / 1000)
        self.lookups = LookupEngine(
            self._admission,
            self.open_scans,
            self.metrics,
            max_batch_entries=settings.max_batch_entries,
            max_message_bytes=settings.max_message_bytes,
        )
        self.scans = ScanEngine(self._admission, self.open_scans, max_message_bytes=settings.max_message_bytes)
        self.watches = WatchEngine(
            self._admission,
            self.open_scans,
            LogReader(settings.bootstrap, client_id),
            max_watches=settings.max_watches,
        )
        self.waits = PositionWaits(
            max_waits=settings.max_position_waits, longest_s=settings.position_wait_timeout_ms / 1000
        )
        servicer = servicer_of(self)
        bind = f"{settings.bind_host}:{settings.node_port}"
        self._server = RpcServer(
            bind,
            SERVICES,
            lambda server: register(server, servicer, self),
            max_message_bytes=settings.max_message_bytes,
            proxy=proxy_for(settings, bind, self._break),
            quick=servicer.quick,
        )
        self._host.port = settings.advertised_port or self._server.port
        self.metrics.registry.register(
            NodeCollector(
                NodeFacts(
                    metrics=self.metrics,
                    listeners=self._listeners,
                    resources=self.resources,
                    state=lambda: self.state,
                    epoch=lambda: self.epoch,
                    tasks=lambda: list(self.tasks.replicas.values()),
                    open_scans=self.open_scans,
                    open_watches=lambda: self.watches.streams.open,
                    position_waits=lambda: self.waits.count,
                    dormant_tasks=self.tasks.dormant_tasks,
                    kafka_silence_s=self._assignment_log.seconds_since_contact,
                )
            )
        )
        self._metrics_server = (
            None
            if settings.metrics_port is None
            else MetricsServer(self.metrics.registry, settings.bind_host, settings.metrics_port)
        )

    @property
    def state(self) -> NodeState:
        """What the node is doing."""
        return self._ownership.state

    @property
    def host(self) -> types_pb2.Host:
        """The node, as others reach it."""
        return self._host

    @property
    def incarnation(self) -> str:
        """Random id of this run."""
        return self._ownership.incarnation

    @property
    def epoch(self) -> int:
        """Newest assignment epoch known, 0 before the first."""
        return self._ownership.epoch

    def stop(self, *, drain: bool) -> None:
        """End `run()`; with `drain`, active tasks are first handed over, within drain_timeout_ms.

        A second call ends a drain.
        """
        self._ownership.stop(drain=drain)
        self._drain = drain and not self._stop_asked.is_set()
        self._stop_asked.set()

    def drain(self, timeout_s: float | None = None) -> list[TaskId]:
        """Begin to drain unless the node is stopping already; return the tasks that others are to take over."""
        if not self._stop_asked.is_set():
            if timeout_s is not None:
                self._drain_timeout_s = timeout_s
            self.stop(drain=True)
        return self._active_tasks()

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            InstanceIdTaken: a newer process has this node's instance id.
            Exception: a defect that the node can't live with; it has been shut down.

        """
        self._loop.add_signal_handler(signal.SIGTERM, partial(self.stop, drain=True))
        self._loop.add_signal_handler(signal.SIGINT, partial(self.stop, drain=False))
        await self._server.start()
        log.info(
            "listening",
            host=self._host.host,
            port=self._host.port,
            instance_id=self._host.instance_id,
            dynamic=self._ownership.dynamic,
            incarnation=self.incarnation,
        )
        self._assignment_log.start()
        self._members_log.start()
        self._ends.start()
        chores = [
            asyncio.create_task(self._heartbeat_forever(), name="heartbeat"),
            asyncio.create_task(self._checkpoint_forever(), name="checkpoint"),
            asyncio.create_task(self._clean_up_forever(), name="cleanup"),
        ]
        stop_asked = asyncio.create_task(self._stop_asked.wait())
        done, _ = await asyncio.wait([*chores, stop_asked], return_when=asyncio.FIRST_COMPLETED)
        for chore in chores:
            if chore in done and isinstance(error := chore.exception(), Exception):
                self._break(error)
        await self._shut_down(chores)
        if self._defect is not None:
            raise self._defect

    def _thread_broke(self, error: Exception) -> None:
        """Bring a defect from the thread that ended by it to the event loop."""
        self._loop.call_soon_threadsafe(self._break, error)

    def _break(self, error: Exception) -> None:
        """Stop at once: without one of its threads or chores a node would only look healthy."""
        log.error("the node stops by a defect", error=f"{type(error).__name__}: {error}")
        self._defect = self._defect or error
        if self.state in {NodeState.REBALANCING, NodeState.RUNNING}:
            self._enter(NodeState.ERROR)
        self._task_changed()
        self.stop(drain=False)

    async def _shut_down(self, chores: list[asyncio.Task[None]]) -> None:
        self._enter(NodeState.PENDING_SHUTDOWN)
        if self._drain:
            await self._hand_over()
        self.waits.stop()
        self.watches.streams.stop()
        await self._server.stop(_STOP_GRACE_S)
        self.open_scans.close()
        await self.watches.close()
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        await asyncio.to_thread(self._ends.stop)
        await asyncio.to_thread(self._assignment_log.stop)
        await asyncio.to_thread(self._members_log.stop)
        await self.tasks.close()
        self._enter(NodeState.NOT_RUNNING)
        topic = members_topic(self._settings.application_id)
        if self._members_known.is_set() and not self._ownership.is_silent:
            self._producer.produce(topic, key=self._host.instance_id.encode(), value=None, partition=0)
        await asyncio.to_thread(self._producer.flush, 5.0)
        await asyncio.to_thread(self._listeners.close, _LISTENERS_END_S)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        log.info("stopped")

    async def _hand_over(self) -> None:
        """Wait until others are active for all our tasks: the controller sees PENDING_SHUTDOWN and moves them.

        Then answer for a little longer, as routers and the new actives may read of it later than we did.
        """
        is_drained = not self._active_tasks()
        if is_drained:
            return
        until = self._loop.time() + self._drain_timeout_s
        while self._loop.time() < until and self._drain:
            if not is_drained and not self._active_tasks():
                is_drained = True
                log.info("drained")
                until = min(until, self._loop.time() + self._settings.heartbeat_interval_ms / 1000)
            await asyncio.sleep(_DRAIN_POLL_S)
        if not is_drained:
            log.warning("stopping with active tasks: nobody took them in time", timeout_s=self._drain_timeout_s)

    def _active_tasks(self) -> list[TaskId]:
        return active_tasks({task: replica.role for task, replica in self.tasks.replicas.items()})

    def _enter(self, state: NodeState) -> None:
        self._state_changed(self._ownership.enter(state))

    def _state_changed(self, before: NodeState | None) -> None:
        if before is not None:
            self._listeners.on_node_state(before, self.state)
            self._heartbeat_due.set()

    def _task_changed(self) -> None:
        states = self.tasks.states()
        self._state_changed(self._ownership.settle(states))
        self._heartbeat_due.set()
        self._loop.create_task(self._server.set_serving(serving=self._ownership.is_serving(states)))

    def _assignment_record(self, key: bytes | None, value: bytes | None) -> None:
        assignment = self._ownership.take_assignment(key, value)
        if assignment is None:
            return
        self._compile_view()
        for store, reason in self._admission.view.unusable.items():
            log.error("store can't be served by this version; its state is kept up to date", store=store, reason=reason)
        wanted = self._ownership.wanted
        log.info("assignment taken", epoch=assignment.epoch, reason=assignment.reason, tasks=len(wanted))
        self.tasks.assign(assignment, wanted)
        self._task_changed()

    def _member_record(self, key: bytes | None, value: bytes | None) -> None:
        try:
            if self._ownership.take_member(key, value):
                self._compile_view()
        except ContractError as error:
            _report_unreadable((key or b"").decode(errors="replace"), error)
        newer = self._ownership.superseded_by
        if newer is not None and self._defect is None:
            self._defect = InstanceIdTaken(newer)
            log.error("the node stops: it is fenced", reason=str(self._defect))
            self.stop(drain=False)

    def _members_in_touch(self) -> None:
        """Called on the reader's thread, each time all records have been handed to the event loop."""
        self._loop.call_soon_threadsafe(self._members_read)

    def _members_read(self) -> None:
        """All members that there were at the start are known: what follows them is ours to say."""
        self._ownership.succeed()
        self._members_known.set()

    def _on_loop(self, take: Callable[[bytes | None, bytes | None], None]) -> Callable[..., None]:
        """Bring a control log's records from its thread to the event loop."""

        def take_or_break(key: bytes | None, value: bytes | None) -> None:
            try:
                take(key, value)
            except Exception as error:  # noqa: BLE001 - what was not taken is missing from all that follows
                self._break(error)

        def on_record(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
            self._loop.call_soon_threadsafe(take_or_break, key, value)

        return on_record

    def _compile_view(self) -> None:
        self._admission.view = view_of(self._ownership.assignment, self._ownership.members)

    def _is_confirmed(self) -> bool:
        return self._ownership.is_confirmed(self._assignment_log.seconds_since_contact())

    def _new_producer(self) -> Producer:
        """Return a producer of heartbeats; none waits for longer than it keeps us a member."""
        settings = self._settings
        timeout: dict[str, str | float | bool] = {"message.timeout.ms": settings.session_timeout_ms}
        return clients.producer(settings.bootstrap, self._client_id, **timeout)

    def _note_delivery(self, error: KafkaError | None, _message: Message) -> None:
        self._is_producer_lost = error is not None

    async def _heartbeat_forever(self) -> None:
        """Write to the members topic at every interval, and at once when something changed."""
        await self._members_known.wait()
        topic = members_topic(self._settings.application_id)
        while True:
            self._heartbeat_due.clear()
            if not self._ownership.is_silent:
                key, value = encode_member(self.member())
                with suppress(BufferError, KafkaException):  # the next heartbeat says the same, and more
                    self._producer.produce(topic, key=key, value=value, partition=0, on_delivery=self._note_delivery)
                self._producer.poll(0)
                if self._is_producer_lost:
                    self._producer.purge()
                    self._producer, self._is_producer_lost = self._new_producer(), False
            await is_set_within(self._heartbeat_due, self._settings.heartbeat_interval_ms / 1000)

    async def _checkpoint_forever(self) -> None:
        while True:
            await is_set_within(self._stop_asked, _CHECKPOINT_INTERVAL_S)
            await self.tasks.save_checkpoints()
            if self._stop_asked.is_set():
                await asyncio.Event().wait()  # the close writes the last ones

    async def _clean_up_forever(self) -> None:
        """Look for idle state now and then; not while a newer assignment than ours may be there unseen."""
        pause_s = min(_CLEANUP_PAUSE_MAX_S, max(_CLEANUP_PAUSE_MIN_S, self._settings.state_cleanup_delay_ms / 10_000))
        while not self._stop_asked.is_set():
            if self._ownership.assignment is not None and self._is_confirmed():
                await self.tasks.clean_up()
            await is_set_within(self._stop_asked, pause_s)
        await asyncio.Event().wait()

    def member(self) -> Member:
        """Return this node's heartbeat."""
        return self._ownership.heartbeat(
            (self._host.host, self._host.port),
            self.tasks.report(),
            self.tasks.global_report(),
            rack=self._settings.rack,
            capacity=self._settings.capacity,
            version=_VERSION,
        )


def _report_unreadable(key: str, error: Exception) -> None:
    log.warning("unreadable control record skipped", key=key, error=str(error))


async def run_node(settings: NodeSettings, listeners: Sequence[Listener] = ()) -> None:
    """Run a node until SIGTERM (drains and leaves) or SIGINT (stops at once).

    Raises:
        InstanceIdTaken: it was fenced.

    """
    # Restores keep a thread busy. Each time the event loop wakes it waits for that thread's turn to end: Python's 5 ms
    # would be most of a lookup's time.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    await QueryNode(settings, listeners).run()


__all__: tuple[str, ...] = ("QueryNode", "run_node")
