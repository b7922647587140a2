"""The thread of the ownership controller: reads heartbeats, feeds the core, publishes the core's decisions.

Only this thread uses the core. If the thread or the driver dies, nodes still serve and follow their changelogs and
routers still fall back to standbys; only reassignment waits.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection

import structlog

from processor.lifecycle import ControllerState
from processor.ownership.core import OwnershipCore
from processor.ownership.publisher import AssignmentPublisher, FencedError, PublishError
from processor.ownership.settings import OwnershipSettings, StoreDeclaration
from statehouse.assignment import Assignment, AssignmentReader, encode
from statehouse.backoff import Backoff, BackoffPolicy, OnPause
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.membership import decode_member
from statehouse.topology import assignment_topic, members_topic

log = structlog.get_logger(__name__)

_QUEUE_MAX = 10_000
_TICK_S = 0.1
_PUBLISHING = BackoffPolicy("publish_assignment", first_s=0.1, longest_s=5.0)
_STOPS_WITHIN_S = 20.0
# A plan for the largest fleet takes half a second, and the driver's processor has other work too.
_PLANNING_SHARE = 0.2

_Record = tuple[bytes | None, bytes | None]


class OwnershipController:
    """Decides and publishes which nodes serve which tasks, while it runs."""

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        stores: Collection[StoreDeclaration],
        settings: OwnershipSettings,
        *,
        on_fatal: Callable[[Exception], None] = lambda _error: None,
        on_rebalance: Callable[[], None] = lambda: None,
        on_pause: OnPause = lambda _cause: None,
        on_state: Callable[[ControllerState], None] = lambda _state: None,
    ) -> None:
        """Prepare; `start()` starts the thread. The controller waits for its topics if they don't exist yet.

        `on_fatal` is called once, on the controller's thread, if it stops for good without a call of `stop`.
        `on_rebalance` is called on that thread after it published an assignment with other holders of a task.
        `on_pause` is called on that thread at each pause before another attempt to publish. `on_state` is called on
        that thread with the state that the controller is in, whenever it may have changed.
        """
        self._bootstrap, self._application_id = bootstrap, application_id
        self._stores, self._settings = tuple(stores), settings
        self._on_fatal, self._on_rebalance, self._on_state = on_fatal, on_rebalance, on_state
        self._name = uuid.uuid4().hex[:12]
        self._core = OwnershipCore(self._settings, self._name)
        self._publisher = AssignmentPublisher(bootstrap, application_id)
        self._records: queue.Queue[_Record] = queue.Queue(_QUEUE_MAX)
        self._members = ControlLogReader(
            bootstrap,
            members_topic(application_id),
            self._enqueue,
            client_id=f"{application_id}-ownership-members",
            on_broken=self._reader_broke,
        )
        self._defect: Exception | None = None
        self._record_at: float | None = None
        self._under_replicated = 0
        self._damped: frozenset[str] = frozenset()
        self._backoff = Backoff(_PUBLISHING, on_pause)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ownership-{application_id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the assignment stays in force."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOPS_WITHIN_S)

    def _run(self) -> None:
        self._on_state(ControllerState.STARTING)
        try:
            self._prepare()
            if not self._stop.is_set():
                self._core.start(time.monotonic())
                self._on_state(ControllerState.RUNNING)
                self._loop()
        except FencedError as error:
            log.warning("ownership controller fenced: it publishes no more", reason=str(error))
            self._on_state(ControllerState.FENCED)
            self._on_fatal(error)
        except Exception as error:  # the driver must learn of it, whatever it is
            log.exception("ownership controller stopped")
            self._on_state(ControllerState.ERROR)
            self._on_fatal(error)
        finally:
            self._stop.set()
            self._members.stop()
            self._publisher.close()
            self._on_state(ControllerState.NOT_RUNNING)

    def _prepare(self) -> None:
        """Read the assignment in force, check the declaration against it, and only then fence the earlier controller.

        Then read the assignment again, to continue from the last one that the earlier controller published.
        """
        self._core.restore(self._read_assignment())
        self._core.declare(self._stores)
        self._members.start()
        while not self._stop.is_set() and not self._members.wait_caught_up(_TICK_S):
            self._raise_defect()
            self._drain(0.0)
        self._drain(0.0)
        self._take_over()
        log.info("ownership controller started", epoch=self._core.assignment.epoch, controller=self._name)

    def _take_over(self) -> None:
        """Open the publisher and read the assignment in force; retries until it succeeds or is stopped."""
        while not self._stop.is_set():
            try:
                self._publisher.open()
            except PublishError as error:
                self._back_off("publisher not open; trying again", error)
            else:
                assignment = self._read_assignment()
                if not self._stop.is_set():
                    self._core.restore(assignment, time.monotonic())
                return

    def _back_off(self, event: str, error: PublishError, **about: object) -> None:
        """Log a failure and wait, longer each time until a publication succeeds."""
        pause_s = self._backoff.failed()
        log.warning(event, error=str(error), in_s=pause_s, **about)
        self._stop.wait(pause_s)

    def _read_assignment(self) -> Assignment | None:
        """Read the assignment topic to its end; None if it has no assignment, or if the controller was stopped."""
        topic = assignment_topic(self._application_id)

        def skipped(key: str, error: Exception) -> None:
            log.warning("unreadable record skipped", topic=topic, key=key, error=str(error))

        def feed(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
            snapshots.feed(key, value)

        snapshots = AssignmentReader(skipped)
        reader = ControlLogReader(
            self._bootstrap,
            topic,
            feed,
            client_id=f"{self._application_id}-ownership-assignment",
            on_broken=self._reader_broke,
        )
        reader.start()
        try:
            while not self._stop.is_set() and not reader.wait_caught_up(_TICK_S):
                self._raise_defect()
        finally:
            reader.stop()
        return snapshots.current

    def _enqueue(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        """Queue a record from the reader's thread; waits while the queue is full."""
        self._record_at = time.monotonic()
        while not self._stop.is_set():
            try:
                self._records.put((key, value), timeout=_TICK_S)
            except queue.Full:
                continue
            return

    def _reader_broke(self, error: Exception) -> None:
        """Called on a reader's thread when it fails; otherwise all members would just seem silent."""
        self._defect = error

    def _raise_defect(self) -> None:
        if self._defect is not None:
            raise self._defect

    def _loop(self) -> None:
        tick_s = min(_TICK_S, self._settings.heartbeat_interval_s / 4)
        tick_at = time.monotonic()
        while not self._stop.is_set():
            self._raise_defect()
            self._drain(max(0.0, tick_at - time.monotonic()))
            now = time.monotonic()
            if now < tick_at:
                continue
            self._note_contact(now)
            proposed = self._core.tick(now)
            took_s = time.monotonic() - now
            self._note_damped()
            if proposed is not None:
                self._publish(proposed)
            self._forget_long_gone(now)
            # Plans for a huge fleet take long, but the pause must not be so long that members seem silent.
            pause_s = min(took_s / _PLANNING_SHARE - took_s, self._settings.heartbeat_interval_s / 2)
            tick_at = time.monotonic() + max(tick_s, pause_s)

    def _drain(self, wait_s: float) -> None:
        """Feed the queued records to the core; waits at most `wait_s` for the first one."""
        try:
            record = self._records.get(timeout=wait_s) if wait_s > 0 else self._records.get_nowait()
            for _ in range(_QUEUE_MAX):
                self._feed(*record)
                record = self._records.get_nowait()
        except queue.Empty:
            return

    def _feed(self, key: bytes | None, value: bytes | None) -> None:
        instance_id = (key or b"").decode(errors="replace")
        if value is None:
            self._core.left(instance_id, time.monotonic())
            return
        try:
            member = decode_member(value)
        except ContractError as error:
            log.warning("unreadable heartbeat skipped", key=instance_id, error=str(error))
            return
        if member.instance_id == instance_id:
            self._core.heartbeat(member, time.monotonic())
        else:
            log.warning("heartbeat skipped: it is under another's key", key=instance_id, member=member.instance_id)

    def _note_contact(self, now: float) -> None:
        """Tell the core whether Kafka is in contact. Records count too: a reader seldom meets a busy topic's end."""
        ages = [self._members.seconds_since_contact(), None if self._record_at is None else now - self._record_at]
        age = min((age for age in ages if age is not None), default=0.0)
        if age > self._settings.session_timeout_s / 2:
            self._core.contact_lost()
            self._on_state(ControllerState.SUSPENDED)
        else:
            self._core.contact_regained(now)
            self._on_state(ControllerState.RUNNING)

    def _publish(self, proposed: Assignment) -> None:
        complete, records = encode(self._core.assignment, proposed)
        try:
            self._publisher.publish(records)
        except PublishError as error:
            self._reopen("assignment not published; trying again", error, epoch=proposed.epoch)
            return
        self._backoff.succeeded()
        if complete.tasks != self._core.assignment.tasks:
            self._on_rebalance()
        self._core.published(complete, time.monotonic())
        log.info("assignment published", epoch=complete.epoch, reason=complete.reason)
        self._note_under_replicated()

    def _forget_long_gone(self, now: float) -> None:
        gone = self._core.forgettable(now)
        if not gone:
            return
        try:
            self._publisher.forget_members(gone)
        except PublishError as error:
            self._reopen("records of members that are long gone not deleted; trying again", error)
            return
        for name in gone:
            self._core.left(name, now)
        log.info("forgot members that are long gone", members=gone)

    def _reopen(self, event: str, error: PublishError, **about: object) -> None:
        """Open the publisher again after a failure; until then the controller may be out of contact with Kafka.

        To open it fences every other controller, also a newer one, so look for a newer one first.

        Raises:
            FencedError: a newer controller has published.

        """
        self._core.contact_lost()
        self._on_state(ControllerState.SUSPENDED)
        self._back_off(event, error, **about)
        if self._core.is_superseded_by(self._read_assignment()):
            raise FencedError("another controller of this application has published meanwhile; only one may")
        self._take_over()
        self._core.contact_regained(time.monotonic())
        self._on_state(ControllerState.RUNNING)

    def _note_damped(self) -> None:
        damped = self._core.damped
        for name in damped.keys() - self._damped:
            log.warning("a node's sessions keep ending: find out why it does not stay", reason=damped[name])
        for name in self._damped - damped.keys():
            log.info("node is no longer held back", node=name)
        self._damped = frozenset(damped)

    def _note_under_replicated(self) -> None:
        short = len(self._core.last_plan.under_replicated) if self._core.last_plan is not None else 0
        if short != self._under_replicated:
            self._under_replicated = short
            log.warning(
                "tasks with fewer copies than asked for: add nodes, or lower num_standby_replicas"
                if short
                else "all tasks have the copies asked for",
                tasks=short,
            )
