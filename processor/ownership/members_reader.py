"""Feeds a controller's core with the members topic: heartbeats, and who has left."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from processor.ownership.core import OwnershipCore
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.membership import decode_member
from statehouse.topology import members_topic

log = structlog.get_logger(__name__)

_QUEUE_MAX: Final = 10_000
_WAIT_S: Final = 0.1


class MembersReader:
    """A reader of the members topic, on a thread of its own, and the queue between it and the core's thread."""

    def __init__(self, bootstrap: str, application_id: str, on_broken: Callable[[Exception], None]) -> None:
        """Prepare; `start()` begins. `on_broken` is called on the reader's thread if it ends by an error."""
        self._records: queue.Queue[tuple[bytes | None, bytes | None]] = queue.Queue(_QUEUE_MAX)
        self._record_at: float | None = None
        self._stop = threading.Event()
        self._reader = ControlLogReader(
            bootstrap,
            members_topic(application_id),
            self._enqueue,
            client_id=f"{application_id}-ownership-members",
            on_broken=on_broken,
        )

    def start(self) -> None:
        """Begin to read."""
        self._reader.start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        self._reader.stop()

    @property
    def caught_up(self) -> bool:
        """Whether the topic was read to its end once; what was read may still be in the queue."""
        return self._reader.caught_up

    def silence_s(self, now: float) -> float:
        """Return for how long Kafka has been out of contact. Records count: a reader seldom meets a busy topic's end.

        `now` is in monotonic seconds. 0 as long as nothing was ever read.
        """
        ages = [self._reader.seconds_since_contact(), None if self._record_at is None else now - self._record_at]
        return min((age for age in ages if age is not None), default=0.0)

    def drain(self, core: OwnershipCore, wait_s: float) -> None:
        """Feed the queued records to the core; waits at most `wait_s` seconds for the first one."""
        try:
            record = self._records.get(timeout=wait_s) if wait_s > 0 else self._records.get_nowait()
            for _ in range(_QUEUE_MAX):
                _feed(core, *record)
                record = self._records.get_nowait()
        except queue.Empty:
            return

    def _enqueue(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        """Queue a record from the reader's thread; waits while the queue is full."""
        self._record_at = time.monotonic()
        while not self._stop.is_set():
            try:
                self._records.put((key, value), timeout=_WAIT_S)
            except queue.Full:
                continue
            return


def _feed(core: OwnershipCore, key: bytes | None, value: bytes | None) -> None:
    instance_id = (key or b"").decode(errors="replace")
    if value is None:
        core.left(instance_id, time.monotonic())
        return
    try:
        member = decode_member(value)
    except ContractError as error:
        log.warning("unreadable heartbeat skipped", key=instance_id, error=str(error))
        return
    if member.instance_id == instance_id:
        core.heartbeat(member, time.monotonic())
    else:
        log.warning("heartbeat skipped: it is under another's key", key=instance_id, member=member.instance_id)
