"""Follows the assignment topic as a controller needs it: the assignment in force, and who acts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from processor.ownership.machine.takeover import ControllerRecord, Takeover
from processor.ownership.topics.controller_record import read_controller
from statehouse.contract.assignment import CONTROLLER_KEY, Assignment, AssignmentReader
from statehouse.contract.topology import assignment_topic
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.observability.unreadable_records import OnUnreadable, OnUnsigned
from statehouse.runtime.brokers import Brokers


class AssignmentLog:
    """A reader of the assignment topic, from its start, on a thread of its own. Thread-safe."""

    def __init__(
        self,
        brokers: Brokers | str,
        application_id: str,
        on_broken: Callable[[Exception], None],
        on_unreadable: OnUnreadable,
        on_unsigned: OnUnsigned,
        before: ControllerRecord | None = None,
    ) -> None:
        """Prepare; `start()` begins. `on_broken` is called on the reader's thread if it ends by an error.

        `before` as in `Takeover`.
        """
        self._on_unreadable = partial(on_unreadable, "assignment")
        self._snapshots = AssignmentReader(self._on_unreadable)
        self._takeover = Takeover(before)
        self._lock = threading.Lock()
        self._confirmed_at: float | None = None
        self._is_changed = True
        self._is_read_again = False
        self._controller: ControllerRecord | None = None
        self._is_controller_heard = True
        self._reader = ControlLogReader(
            brokers,
            assignment_topic(application_id),
            self._feed,
            client_id=f"{application_id}-ownership-assignment",
            on_broken=on_broken,
            on_contact=self._confirm,
            on_anew=self._begin_anew,
            on_refused=self._refuse,
            on_unsigned=partial(on_unsigned, "assignment"),
        )

    def start(self) -> None:
        """Begin to read."""
        self._reader.start()

    def stop(self) -> None:
        """Read no more; what was read stays."""
        self._reader.stop()

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until the topic was read to its end; False if that took too long."""
        return self._reader.wait_caught_up(timeout_s)

    @property
    def assignment(self) -> Assignment | None:
        """The assignment in force; None if there is none."""
        return self._snapshots.current

    @property
    def acting(self) -> ControllerRecord | None:
        """The acting controller's last record; None if there is none, or if it can't be read."""
        return self._takeover.acting

    @property
    def is_takeover_due(self) -> bool:
        """Whether a standby controller should take over."""
        with self._lock:
            return self._takeover.is_due(time.monotonic())

    def newest_epoch(self) -> int:
        """Return the epoch of the log's newest assignment, 0 if it has none."""
        with self._lock:
            return self._snapshots.epoch

    def unlike(self, assignment: Assignment, since: float) -> str:
        """Return the key of a record that the log doesn't have as it was published; empty if there is none.

        Empty, too, as long as the log has not been read to where it ended after `since`, when the last record was
        written (monotonic seconds), and if nothing was written since a call that found none.
        """
        with self._lock:
            if self._confirmed_at is None or self._confirmed_at < since or not self._is_changed:
                return ""
            key = self._snapshots.unlike(assignment)
            self._is_changed = bool(key)
            return key

    def of_newer_format(self) -> str:
        """Return the key of a record that is skipped as its format is a newer version's; empty if there is none."""
        with self._lock:
            return self._snapshots.of_newer_format()

    def not_understood(self) -> str:
        """Return the key of a record that another version wrote and this one can't write on; empty if there is none."""
        with self._lock:
            return self._snapshots.not_understood()

    def _feed(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        with self._lock:
            if key == CONTROLLER_KEY:
                self._controller = read_controller(value, self._controller, self._on_unreadable)
                self._is_controller_heard = False
                if not self._is_read_again:
                    self._hear_controller()
            else:
                self._snapshots.feed(key, value)
                self._is_changed = True

    def _refuse(self, key: bytes | None, error: ContractError) -> None:
        """Take that a record is skipped: its writer may not write it, but it may hide one that counted."""
        name = (key or b"").decode(errors="replace")
        with self._lock:
            if key == CONTROLLER_KEY:
                self._on_unreadable(name, error)
            else:
                self._snapshots.refuse(name, error)
                self._is_changed = True

    def _hear_controller(self) -> None:
        """Take the last record of a controller. Those that are read again prove nothing, but the last one does."""
        if not self._is_controller_heard:
            self._is_controller_heard = True
            self._takeover.hear(self._controller, time.monotonic())

    def _begin_anew(self) -> None:
        with self._lock:
            self._snapshots.begin()
            self._confirmed_at, self._is_changed = None, True
            self._is_read_again = True

    def _confirm(self) -> None:
        silent_s = self._reader.seconds_since_contact()
        if silent_s is not None:
            with self._lock:
                self._confirmed_at = time.monotonic() - silent_s
                self._takeover.confirm(self._confirmed_at)
                self._snapshots.end_reached()
                self._is_read_again = False
                self._hear_controller()
