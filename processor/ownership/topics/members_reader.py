"""Feeds a controller's core with the members topic: heartbeats, and who has left."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from processor.ownership.machine.core import OwnershipCore
from statehouse.contract.membership import decode_member
from statehouse.contract.topology import members_topic
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.observability.unreadable_records import OnUnreadable, OnUnsigned
from statehouse.runtime.brokers import Brokers
from statehouse.runtime.clocks import process_clock

_QUEUE_MAX: Final = 10_000
_WAIT_S: Final = 0.1


class MembersReader:
    """A reader of the members topic, on a thread of its own, and the queue between it and the core's thread."""

    def __init__(
        self,
        brokers: Brokers | str,
        application_id: str,
        on_broken: Callable[[Exception], None],
        on_unreadable: OnUnreadable,
        on_unsigned: OnUnsigned,
    ) -> None:
        """Prepare; `start()` begins. `on_broken` is called on the reader's thread if it ends by an error."""
        self._records: queue.Queue[tuple[bytes | None, bytes | None, int] | None] = queue.Queue(_QUEUE_MAX)
        self._record_at: float | None = None
        self._again_since_ms: float | None = None
        self._on_unreadable = on_unreadable
        self._stop = threading.Event()
        self._reader = ControlLogReader(
            brokers,
            members_topic(application_id),
            self._enqueue,
            client_id=f"{application_id}-ownership-members",
            on_broken=on_broken,
            on_anew=self._begin_anew,
            on_contact=self._end_again,
            on_refused=partial(on_unreadable, "members"),
            on_unsigned=partial(on_unsigned, "members"),
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

    def wake(self) -> None:
        """Have `drain` return, on any thread; a full queue needs no waking."""
        with suppress(queue.Full):
            self._records.put_nowait(None)

    def drain(self, core: OwnershipCore, wait_s: float) -> None:
        """Feed the queued records to the core; waits at most `wait_s` seconds for the first one, or for `wake`."""
        try:
            record = self._records.get(timeout=wait_s) if wait_s > 0 else self._records.get_nowait()
            for _ in range(_QUEUE_MAX):
                if record is not None:
                    self._feed(core, *record)
                record = self._records.get_nowait()
        except queue.Empty:
            return

    def _enqueue(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """Queue a record from the reader's thread; waits while the queue is full."""
        self._record_at = time.monotonic()
        if self._again_since_ms is not None and timestamp_ms < self._again_since_ms:
            return  # it was read before, and proves nothing about now
        while not self._stop.is_set():
            try:
                self._records.put((key, value, timestamp_ms), timeout=_WAIT_S)
            except queue.Full:
                continue
            return

    def _begin_anew(self) -> None:
        """Take that the topic is read from its beginning again."""
        self._again_since_ms = process_clock().now_ms()

    def _end_again(self) -> None:
        self._again_since_ms = None

    def _feed(self, core: OwnershipCore, key: bytes | None, value: bytes | None, written_at_ms: int) -> None:
        if value is None:
            core.left((key or b"").decode(errors="replace"), time.monotonic())
            return
        try:
            member = decode_member(key, value, written_at_ms, process_clock().now_ms())
        except ContractError as error:
            self._on_unreadable("members", key, error)
            return
        core.heartbeat(member, time.monotonic())
