"""The ownership controller's thread: reads heartbeats, feeds the core, publishes what it decides.

Only this thread touches the core. If it dies, or the driver does, nodes go on serving and following and routers go on
falling back; only reassignment waits.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection

import structlog

from processor.ownership.core import OwnershipCore
from processor.ownership.publisher import AssignmentPublisher, FencedError, PublishError
from processor.ownership.settings import OwnershipSettings, StoreDeclaration
from statehouse.assignment import Assignment, AssignmentReader, encode
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.membership import decode_member
from statehouse.topology import assignment_topic, members_topic

log = structlog.get_logger(__name__)

_QUEUE_MAX = 10_000
_TICK_S = 0.1
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 5.0
# A plan of the largest fleet takes half a second; it shares the driver's processor with everything else there.
_PLANNING_SHARE = 0.2

_Record = tuple[bytes | None, bytes | None]


class OwnershipController:
    """Decides and publishes who serves what, for as long as it runs.

    Attributes:
        fenced: whether a newer controller took over.
        error: what stopped it, None while it runs or if it was asked to stop.
        assignment: the assignment in force, as this controller knows it.

    """

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        stores: Collection[StoreDeclaration],
        settings: OwnershipSettings | None = None,
        *,
        on_fatal: Callable[[Exception], None] = lambda _error: None,
        on_rebalance: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `start()` begins. Its topics must exist or be created soon: it waits for them.

        `on_fatal` is called once, on the controller's thread, when it stops for good without having been asked to;
        `on_rebalance` on that thread, too, when an assignment was published in which a task has other holders.
        """
        self._bootstrap, self._application_id = bootstrap, application_id
        self._stores, self._settings = tuple(stores), settings or OwnershipSettings()
        self._on_fatal, self._on_rebalance = on_fatal, on_rebalance
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
        self._held_back: frozenset[str] = frozenset()
        self._backoff_s = _BACKOFF_FIRST_S
        self._stop = threading.Event()
        self._published = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ownership-{application_id}", daemon=True)
        self.fenced = False
        self.error: Exception | None = None
        self.assignment = Assignment()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop; the assignment stays in force."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def wait_published(self, timeout_s: float) -> bool:
        """Wait until the declared stores are in the assignment topic; False if it took too long.

        Nodes need not be there for that.

        Raises:
            Exception: what stopped the controller: a ConfigurationError, being fenced.

        """
        self._published.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return self._published.is_set()

    def _run(self) -> None:
        try:
            self._prepare()
            if not self._stop.is_set():
                self._core.start(time.monotonic())
                self._loop()
        except FencedError as error:
            self.fenced = True
            log.warning("ownership controller fenced: it publishes no more", reason=str(error))
            self._fail(error)
        except Exception as error:  # the driver must learn of it, whatever it is
            log.exception("ownership controller stopped")
            self._fail(error)
        finally:
            self._stop.set()
            self._members.stop()
            self._publisher.close()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._published.set()
        self._on_fatal(error)

    def _prepare(self) -> None:
        """Read what is in force, check the declaration against it, and only then fence the controller before us.

        The assignment is read again after that: what the other one published last must be built upon.
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
        """Open the publisher and learn what is in force; tries until it succeeds or is stopped."""
        while not self._stop.is_set():
            try:
                self._publisher.open()
            except PublishError as error:
                log.warning("publisher not open; trying again", error=str(error), in_s=self._backoff_s)
                self._back_off()
            else:
                assignment = self._read_assignment()
                if not self._stop.is_set():
                    self._core.restore(assignment, time.monotonic())
                    self._note_in_force()
                return

    def _back_off(self) -> None:
        """Wait, longer each time until something has been published."""
        self._stop.wait(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)

    def _read_assignment(self) -> Assignment | None:
        """Read the assignment topic to its end; None if it holds no assignment (or we were stopped)."""
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
        """Take a record from the reader's thread; a full queue makes it wait."""
        self._record_at = time.monotonic()
        while not self._stop.is_set():
            try:
                self._records.put((key, value), timeout=_TICK_S)
            except queue.Full:
                continue
            return

    def _reader_broke(self, error: Exception) -> None:
        """Called on a reader's thread: without it members would only seem to be silent."""
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
            self._note_held_back()
            if proposed is not None:
                self._publish(proposed)
            self._forget_long_gone(now)
            # A huge fleet's plans may take long, but never so that members seem to be silent meanwhile.
            pause_s = min(took_s / _PLANNING_SHARE - took_s, self._settings.heartbeat_interval_s / 2)
            tick_at = time.monotonic() + max(tick_s, pause_s)
            self._note_in_force()

    def _drain(self, wait_s: float) -> None:
        """Feed the core what has been read; waits for a first record for at most `wait_s`."""
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
        """Tell the core whether we hear Kafka. Records count as well: a busy topic's end is seldom met exactly."""
        ages = [self._members.seconds_since_contact(), None if self._record_at is None else now - self._record_at]
        age = min((age for age in ages if age is not None), default=0.0)
        if age > self._settings.session_timeout_s / 2:
            self._core.contact_lost()
        else:
            self._core.contact_regained(now)

    def _publish(self, proposed: Assignment) -> None:
        complete, records = encode(self._core.assignment, proposed)
        try:
            self._publisher.publish(records)
        except PublishError as error:
            log.warning(
                "assignment not published; trying again", epoch=proposed.epoch, error=str(error), in_s=self._backoff_s
            )
            self._reopen()
            return
        self._backoff_s = _BACKOFF_FIRST_S
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
            log.warning("records of members that are long gone not deleted; trying again", error=str(error))
            self._reopen()
            return
        for name in gone:
            self._core.left(name, now)
        log.info("forgot members that are long gone", members=gone)

    def _reopen(self) -> None:
        """Open the publisher again after a failure; meanwhile we can't be sure to hear anybody.

        A newer controller would be fenced by that as well as any other: it must not be, so we look for one first.

        Raises:
            FencedError: there is one.

        """
        self._core.contact_lost()
        self._back_off()
        if self._core.is_superseded_by(self._read_assignment()):
            raise FencedError("another controller of this application has published meanwhile; only one may")
        self._take_over()
        self._core.contact_regained(time.monotonic())

    def _note_in_force(self) -> None:
        self.assignment = self._core.assignment
        if self._core.is_topology_published:
            self._published.set()

    def _note_held_back(self) -> None:
        held_back = self._core.held_back
        for name in held_back.keys() - self._held_back:
            log.warning("a node's sessions keep ending: find out why it does not stay", reason=held_back[name])
        for name in self._held_back - held_back.keys():
            log.info("node is no longer held back", node=name)
        self._held_back = frozenset(held_back)

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
