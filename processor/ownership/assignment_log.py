"""Follows the assignment topic as a controller needs it: the assignment in force, and who acts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from processor.ownership.controller_record import read_controller
from processor.ownership.takeover import ControllerRecord, Takeover
from statehouse.assignment import CONTROLLER_KEY, Assignment, AssignmentReader
from statehouse.kafka.control_log import ControlLogReader
from statehouse.topology import assignment_topic

log = structlog.get_logger(__name__)


class AssignmentLog:
    """A reader of the assignment topic, from its start, on a thread of its own. Thread-safe."""

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        on_broken: Callable[[Exception], None],
        before: ControllerRecord | None = None,
    ) -> None:
        """Prepare; `start()` begins. `on_broken` is called on the reader's thread if it ends by an error.

        `before` as in `Takeover`.
        """
        self._topic = assignment_topic(application_id)
        self._snapshots = AssignmentReader(self._skipped)
        self._takeover = Takeover(before)
        self._lock = threading.Lock()
        self._reader = ControlLogReader(
            bootstrap,
            self._topic,
            self._feed,
            client_id=f"{application_id}-ownership-assignment",
            on_broken=on_broken,
            on_contact=self._confirm,
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

    def not_understood(self) -> str:
        """Return the key of a record that another version wrote and this one can't write on; empty if there is none."""
        with self._lock:
            return self._snapshots.not_understood()

    def _feed(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        with self._lock:
            if key == CONTROLLER_KEY:
                self._takeover.hear(read_controller(value, self._skipped), time.monotonic())
            else:
                self._snapshots.feed(key, value)

    def _confirm(self) -> None:
        silent_s = self._reader.seconds_since_contact()
        if silent_s is not None:
            with self._lock:
                self._takeover.confirm(time.monotonic() - silent_s)

    def _skipped(self, key: str, error: Exception) -> None:
        log.warning("unreadable record skipped", topic=self._topic, key=key, error=str(error))
