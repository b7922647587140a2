"""The node: one process that follows the assignment, holds its tasks, writes heartbeats and answers reads."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Any

import structlog

from query_service.collector import NodeCollector
from query_service.control_topics import ControlTopics
from query_service.dataplane.holding import is_wanted, start_order
from query_service.dataplane.orders import DataPlane
from query_service.dataplane.profiles import made_profile
from query_service.heartbeat_process import HeartbeatOptions, HeartbeatProcess
from query_service.heartbeats import Heartbeats
from query_service.reads.fleet_view import FleetView
from query_service.reads.sums import SumHandler
from query_service.replicas.log_reach import LogReach
from query_service.replicas.replays import Replays
from query_service.replicas.replication import EndOffsetWatcher
from query_service.replicas.tasks import TaskManager
from query_service.service import NodeServicer, PeerServicer
from query_service.states.ownership import InstanceIdTaken, active_tasks
from query_service.states.sources import Peer, peers_of
from query_service.telemetry.listeners import Listener
from query_service.telemetry.metrics import NodeMetrics
from query_service.wiring import new_listeners, new_ownership, new_reads, new_resources, new_server, new_serving
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import Member, NodeState
from statehouse.contract.topology import AnyTaskId, TaskId, members_topic
from statehouse.observability.metrics import MetricsServer, serve_metrics
from statehouse.observability.proxy_sums import ProxyCollector
from statehouse.observability.tracing import tracing_for
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.background import BackgroundWork, as_error
from statehouse.runtime.stop_deadline import CLOSE_S, StopDeadline, end_threads
from statehouse.runtime.waiting import is_set_within
from statehouse.settings import NodeSettings
from statehouse.v1 import types_pb2

log = structlog.get_logger(__name__)

_DRAIN_POLL_S = 0.1
_VERSION = version("statehouse")  # asked once, as Python reads it from files
_SWITCH_INTERVAL_S = 0.0005
_LISTENERS_END_S = 1.0
_LAST_WORD_S = 1.0
_MEMBERS_KNOWN_S = 5.0
_CLEANUP_PAUSE_MIN_S, _CLEANUP_PAUSE_MAX_S = 0.1, 60.0


class QueryNode:
    """A query node. `run()` serves until `stop()` or `drain()` is called."""

    def __init__(
        self, settings: NodeSettings, heartbeats: HeartbeatProcess, listeners: Sequence[Listener] = ()
    ) -> None:
        """Make a node from its settings. `listeners` are called in addition to those of installed packages."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        self._drain = True
        self._drain_timeout_s = settings.drain_timeout_ms / 1000
        self._defect: Exception | None = None
        self._left = "active tasks to hand over, and all the rest"
        self._chores = BackgroundWork()
        self._metrics = NodeMetrics()
        self._listeners = new_listeners(self._metrics, listeners)
        skipped = UnreadableRecords(self._metrics.registry, "statehouse_node")
        self._ownership = new_ownership(settings, skipped)
        self._resources = new_resources(settings)
        client_id = f"{settings.application_id}-{self._ownership.instance_id}"
        self._plane = DataPlane(self._loop) if is_wanted(settings) else None
        self._start_plane = None if self._plane is None else start_order(settings, client_id)
        self._tasks = TaskManager(
            settings,
            client_id,
            self._task_changed,
            self._thread_broke,
            self._listeners,
            self._metrics,
            self._resources,
            self._plane,
            self._peers_of,
        )
        self._replays = Replays(
            settings,
            client_id,
            self._resources,
            self._plane,
            self._thread_broke,
            lambda: len(self._tasks.store_replicas()) + 1,
        )
        self._ends = EndOffsetWatcher(
            settings.brokers,
            client_id,
            settings.confirm_interval_ms / 1000,
            lambda: [*self._tasks.store_replicas(), *self._replays.replicas()],
            self._thread_broke,
            self._topic_changed,
        )
        self._control = ControlTopics(
            settings,
            client_id,
            self._ownership,
            skipped,
            on_view=self._take_view,
            on_assignment=self._take_assignment,
            on_superseded=self._superseded,
            on_defect=self._break,
            on_thread_defect=self._thread_broke,
            on_report=self._reported,
        )
        self._close_s = settings.stop_grace_ms / 1000 + CLOSE_S
        options = HeartbeatOptions(
            settings.brokers,
            client_id,
            members_topic(settings.application_id),
            self._ownership.instance_id,
            interval_s=settings.heartbeat_interval_ms / 1000,
            timeout_ms=settings.session_timeout_ms,
            drain_s=self._drain_timeout_s,
            close_s=self._close_s,
        )
        self._signals_fd = heartbeats.signals.fileno()
        self._heartbeats = Heartbeats(heartbeats, options, self._member, self._metrics.heartbeat_failures.inc)
        self._host = types_pb2.Host(
            instance_id=self._ownership.instance_id, host=settings.advertised_host or settings.bind_host
        )
        self._tracing = tracing_for("node", **{"service.instance.id": self._host.instance_id})
        self._reads = new_reads(
            settings, client_id, self._host, self._tasks.replicas, self._control, self._metrics, self._tracing
        )
        self._sums = SumHandler(
            self._reads.admission, self._reads.waits, self._replays, LogReach(settings.brokers, client_id)
        )
        self._serving = new_serving(settings, self._plane, self._reads.admission, self._control, self._metrics)
        answers = NodeServicer(
            self._host,
            self._ownership,
            self._tasks,
            self._control,
            self._heartbeats,
            self.drain,
            partial(made_profile, self._plane),
            self._sums,
            self._restore_replica,
            self._metrics,
        )
        self._server = new_server(
            settings,
            self._reads,
            answers,
            PeerServicer(self._tasks.given, self._metrics),
            self._metrics,
            self._break,
            is_traced=self._tracing is not None,
        )
        self._host.port = settings.advertised_port or self._server.port
        self._metrics_server = self._serve_metrics()

    def _serve_metrics(self) -> MetricsServer | None:
        """Register the metrics that are read at each scrape, and serve them if the settings name a port."""
        collector = NodeCollector(
            self._metrics,
            self._listeners,
            self._resources,
            self._ownership,
            self._tasks,
            self._control,
            self._heartbeats,
            self._reads,
            sums := self._server.proxy_sums,
        )
        self._metrics.registry.register(collector)
        self._metrics.registry.register(ProxyCollector("statehouse_node", sums, has_express=False))
        return serve_metrics(self._metrics.registry, self._settings, self._metrics.security.denied)

    def stop(self, *, drain: bool) -> None:
        """Make `run()` end. With `drain` the node first hands over its active tasks, within drain_timeout_ms.

        A second call ends a drain.
        """
        self._ownership.stop(drain=drain)
        self._drain = drain and not self._stop_asked.is_set()
        self._stop_asked.set()
        self._heartbeats.stops(self._close_s + (self._drain_timeout_s if self._drain else 0.0), self._left)

    def drain(self, timeout_s: float | None = None) -> list[TaskId]:
        """Begin to drain, unless the node is stopping already. Return the tasks that other nodes must take over.

        `timeout_s` replaces the setting drain_timeout_ms.
        """
        if not self._stop_asked.is_set():
            if timeout_s is not None:
                self._drain_timeout_s = timeout_s
            self.stop(drain=True)
        return self._active_tasks()

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            InstanceIdTaken: a newer process uses this node's instance id.
            Exception: a defect has stopped the node.

        """
        await self._heartbeats.start()
        try:
            with self._stopped_by_signals():
                await self._serve()
        finally:
            await self._heartbeats.close()
        if self._defect is not None:
            raise self._defect

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT stop the node. The process next to it has their numbers even while Python is held.

        Not by the event loop's own handlers: they take the one place at which the interpreter tells of signals
        immediately.
        """

        def taken(number: int, _frame: FrameType | None) -> None:
            self._loop.call_soon_threadsafe(partial(self.stop, drain=number == signal.SIGTERM))

        before = {number: signal.signal(number, taken) for number in (signal.SIGTERM, signal.SIGINT)}
        fd_before = signal.set_wakeup_fd(self._signals_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _serve(self) -> None:
        await self._server.start()
        if self._plane is not None and self._start_plane is not None:
            self._server.connect(self._plane)
            self._plane.engine = (await asyncio.wrap_future(self._plane.begin(self._start_plane))).engine
        if self._serving is not None:
            self._chores.start(self._or_break(self._serving.hold_forever()), "serving")
        log.info(
            "listening",
            host=self._host.host,
            port=self._host.port,
            instance_id=self._host.instance_id,
            dynamic=self._ownership.dynamic,
            incarnation=self._ownership.incarnation,
        )
        self._control.start()
        self._ends.start()
        self._chores.start(self._or_break(self._heartbeat_forever()), "heartbeat")
        self._chores.start(self._or_break(self._heartbeats.hear_forever()), "heartbeats written")
        self._chores.start(self._or_break(self._checkpoint_forever()), "checkpoint")
        self._chores.start(self._or_break(self._clean_up_forever()), "cleanup")
        await self._stop_asked.wait()
        await self._shut_down()

    async def _or_break(self, chore: Coroutine[Any, Any, None]) -> None:
        """Do a chore until cancelled. Its error stops the node, and ends a drain."""
        try:
            await chore
        except BaseException as caught:  # noqa: BLE001 - `_break` logs it, and `run` raises it
            self._break(as_error(caught))

    def _topic_changed(self) -> None:
        """Called on the thread that looks at topics: heartbeats say which stores refuse lookups."""
        self._loop.call_soon_threadsafe(self._task_changed)

    def _thread_broke(self, error: Exception) -> None:
        """Bring a defect to the event loop, from the thread that it ended."""
        self._loop.call_soon_threadsafe(self._break, error)

    def _break(self, error: Exception) -> None:
        """Stop immediately: a node that lacks one of its threads or chores would only look healthy."""
        log.error("the node stops by a defect", error=f"{type(error).__name__}: {error}")
        self._defect = self._defect or error
        if self._ownership.state in {NodeState.REBALANCING, NodeState.RUNNING}:
            self._enter(NodeState.ERROR)
        self.stop(drain=False)
        self._task_changed()  # last, as the defect may be in here

    async def _shut_down(self) -> None:
        self._enter(NodeState.PENDING_SHUTDOWN)
        if self._drain:
            await self._hand_over()
        if self._ownership.owes_word and self._control.members_known.is_set():
            # Before connections are refused: others would become active.
            await self._heartbeats.write(_LAST_WORD_S)
            self._ownership.word_given()
        bound = StopDeadline(self._close_s, lambda: self._left)
        try:
            await self._close()
        finally:
            bound.close()
        log.info("stopped")

    async def _close(self) -> None:
        """Close everything, in the order in which things need each other."""
        self._leave("calls that are under way")
        self._reads.waits.stop()
        self._reads.watches.streams.stop()
        await self._server.stop(self._settings.stop_grace_ms / 1000)
        self._leave("reads that are under way")
        self._reads.open_scans.close()
        await self._sums.close()
        self._reads.lookups.close()
        self._reads.fetches.close()
        await self._reads.watches.close()
        await self._chores.cancel()
        self._leave("the readers of topics")
        await asyncio.to_thread(self._ends.stop)
        await self._control.stop()
        self._leave("stores, and their last checkpoints")
        await self._replays.close()
        await self._tasks.close()
        if self._plane is not None:
            await self._server.close()
        self._leave("the tombstone in the members topic, listeners, metrics")
        self._enter(NodeState.NOT_RUNNING)
        leaves = self._control.members_known.is_set() and not self._ownership.is_silent
        await self._heartbeats.end(leaves=leaves)
        await asyncio.to_thread(self._listeners.close, _LISTENERS_END_S)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _leave(self, left: str) -> None:
        """Say what the stop has left to do."""
        self._left = left
        self._heartbeats.stops(self._close_s, left)

    async def _hand_over(self) -> None:
        """Wait until other nodes are active for all our tasks: the controller sees PENDING_SHUTDOWN and moves them.

        Then go on answering for a short time, as routers and the new actives may read the assignment later than we do.
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

    async def _restore_replica(self, store: str, partition: int) -> AnyTaskId:
        """Begin to restore a replica anew; return its task."""
        served = self._reads.admission.store(store)
        return await self._tasks.restore_anew(served.spec, self._reads.admission.existing(served, partition))

    def _active_tasks(self) -> list[TaskId]:
        return active_tasks({task: replica.role for task, replica in self._tasks.replicas.items()})

    def _enter(self, state: NodeState) -> None:
        self._state_changed(self._ownership.enter(state))

    def _state_changed(self, before: NodeState | None) -> None:
        if before is not None:
            self._listeners.on_node_state(before, self._ownership.state)
            self._heartbeats.due()

    def _task_changed(self) -> None:
        states = self._tasks.states()
        self._state_changed(self._ownership.settle(states))
        self._heartbeats.due()
        self._server.health.set(serving=self._ownership.is_serving(states), ready=self._ownership.is_ready(states))
        self._decided()

    def _decided(self) -> None:
        """Have the data plane act on what is decided now."""
        if self._serving is not None:
            self._serving.due()

    def _reported(self, store: str) -> None:
        for task in self._tasks.replicas.values():
            for replica in task.stores.values():
                if replica.spec.name == store:
                    replica.advanced.poke()  # reads may wait for a batch that is named now
        if self._serving is not None:
            self._serving.reported(store)

    def _take_view(self, view: FleetView) -> None:
        self._reads.admission.view = view
        self._decided()

    async def _peers_of(self, task: AnyTaskId, store: str, partition: int) -> list[Peer]:
        """Return the nodes that can give a store's partition, as soon as it is known who there is."""
        await is_set_within(self._control.members_known, _MEMBERS_KNOWN_S)
        # Not those of the view for reads: it has the heartbeats of when an address or the assignment changed last.
        now = self._ownership
        return peers_of(now.assignment, now.members, self._host.instance_id, task, store, partition)

    def _take_assignment(self, assignment: Assignment) -> None:
        self._tasks.assign(assignment, self._ownership.wanted)
        self._task_changed()

    def _superseded(self, newer: Member) -> None:
        if self._defect is None:
            self._defect = InstanceIdTaken(newer)
            log.error("the node stops: it is fenced", reason=str(self._defect))
            self.stop(drain=False)

    async def _heartbeat_forever(self) -> None:
        await self._control.members_known.wait()
        await self._heartbeats.write_forever()

    async def _checkpoint_forever(self) -> None:
        while True:
            await is_set_within(self._stop_asked, self._settings.checkpoint_interval_ms / 1000)
            await self._tasks.save_checkpoints()
            if self._stop_asked.is_set():
                await asyncio.Event().wait()  # closing the tasks writes the last checkpoints

    async def _clean_up_forever(self) -> None:
        """Remove idle state now and then, but not while there may be a newer assignment that we have not read."""
        pause_s = min(_CLEANUP_PAUSE_MAX_S, max(_CLEANUP_PAUSE_MIN_S, self._settings.state_cleanup_delay_ms / 10_000))
        while not self._stop_asked.is_set():
            if self._ownership.assignment is not None and self._control.is_confirmed():
                await self._tasks.clean_up()
            await is_set_within(self._stop_asked, pause_s)
        await asyncio.Event().wait()

    def _member(self) -> Member | None:
        """Return this node's heartbeat, None while the node must be silent."""
        if self._ownership.is_silent and not self._ownership.owes_word:
            return None
        heartbeat = self._ownership.heartbeat(
            (self._host.host, self._host.port),
            self._tasks.report(),
            self._tasks.global_report(),
            rack=self._settings.rack,
            capacity=self._settings.capacity,
            version=_VERSION,
        )
        self._control.take_own(heartbeat)
        return heartbeat


def run_node(settings: NodeSettings, listeners: Sequence[Listener] = ()) -> None:
    """Run a node until SIGTERM (drains and leaves) or SIGINT (stops immediately).

    Call it on the main thread, before there are others: a process is forked that writes the heartbeats.

    Raises:
        InstanceIdTaken: a newer process uses this node's instance id.

    """
    # Restores keep a thread busy. Each time the event loop wakes, it waits until that thread yields the interpreter.
    # With Python's default of 5 ms this wait would be most of a lookup's time.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with HeartbeatProcess() as heartbeats:
        asyncio.run(_run(settings, heartbeats, listeners))


async def _run(settings: NodeSettings, heartbeats: HeartbeatProcess, listeners: Sequence[Listener]) -> None:
    try:
        await QueryNode(settings, heartbeats, listeners).run()
    finally:
        await end_threads()
