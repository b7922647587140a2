"""Which updates of a table are held back, and when they pass: Kafka Streams' `suppress` (KIP-328); pure.

A buffer keeps the last update of a key, in the place of its first. It has a stream time, the largest timestamp of what
came into it so far: an update has waited as long as stream time is past the time that its wait counts from.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from statehouse.errors import ConfigurationError


class WhenFull(StrEnum):
    """What becomes of a buffer that would hold more than it may."""

    SHUT_DOWN = "shut_down"
    """The query ends, and the processor with it; nothing passes before its time."""
    EMIT_EARLY = "emit_early"
    """The oldest updates pass before their time."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """What the buffer of one partition may hold; without a bound as much as comes.

    Attributes:
        max_records: keys.
        max_bytes: of keys and rows, as JSON text.
        when_full: what happens beyond either.

    Raises:
        ConfigurationError: a bound is less than 1.

    """

    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = WhenFull.SHUT_DOWN

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        for name in ("max_records", "max_bytes"):
            bound = getattr(self, name)
            if bound is not None and bound < 1:
                raise ConfigurationError(f"suppress: {name}={bound} must be at least 1")

    def is_exceeded(self, records: int, size: int) -> bool:
        """Whether so many records, of so many bytes, are too much."""
        return (self.max_records is not None and records > self.max_records) or (
            self.max_bytes is not None and size > self.max_bytes
        )


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """An update passes when stream time is `wait` past the first update of its key that was held back."""

    wait: timedelta
    buffer: Buffer

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        _check_wait("the time limit", self.wait)


@dataclass(frozen=True, slots=True)
class WindowCloses:
    """A window's update passes when stream time is `wait`, the grace, past the window's end.

    Raises:
        ConfigurationError: the buffer would let windows pass before they close.

    """

    wait: timedelta
    buffer: Buffer

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        _check_wait("the grace", self.wait)
        if self.buffer.when_full is WhenFull.EMIT_EARLY:
            raise ConfigurationError(
                "suppress: what passes early is not final; a buffer until windows close shuts down"
            )


Suppression = TimeLimit | WindowCloses


class Change(NamedTuple):
    """An update of a key."""

    key: str
    row: str
    timestamp_ms: int | None
    """None: the buffer's stream time."""
    since_ms: int | None
    """What its wait counts from, if nothing of its key is held back. None: its timestamp."""


class Held(NamedTuple):
    """What is held back of a key: its last row, and what the wait counts from."""

    since_ms: int
    row: str


class Passed(NamedTuple):
    """What came of a batch."""

    rows: list[str]
    held: dict[str, Held]
    stream_ms: int


def size_of(held: Mapping[str, Held]) -> int:
    """Return the bytes that a buffer holds."""
    return sum(_size(key, each.row) for key, each in held.items())


def pass_on(held: Mapping[str, Held], stream_ms: int, changes: Iterable[Change], suppression: Suppression) -> Passed:
    """Take a batch's changes, in their order; return what passes, what is held back then, and the new stream time.

    Each change is put into the buffer, then what is due passes, the longest waiting first. A key that passes twice in
    a batch is put out once, as it passed last.

    Raises:
        ConfigurationError: the buffer is full, and is to shut down then.

    """
    kept, buffer = dict(held), suppression.buffer
    wait_ms = suppression.wait // timedelta(milliseconds=1)
    # A key is in it once: it leaves the buffer only as the first of the queue, and keeps its place until then.
    queue = [(each.since_ms, key) for key, each in kept.items()]
    heapq.heapify(queue)
    size = size_of(kept)
    passed: dict[str, str] = {}
    for change in changes:
        timestamp_ms = stream_ms if change.timestamp_ms is None else change.timestamp_ms
        stream_ms = max(stream_ms, timestamp_ms)
        before = kept.get(change.key)
        if before is None:
            since_ms = timestamp_ms if change.since_ms is None else change.since_ms
            heapq.heappush(queue, (since_ms, change.key))
        else:
            since_ms = before.since_ms
            size -= _size(change.key, before.row)
        kept[change.key] = Held(since_ms, change.row)
        size += _size(change.key, change.row)
        emits_early = buffer.when_full is WhenFull.EMIT_EARLY
        while queue and (queue[0][0] + wait_ms <= stream_ms or (emits_early and buffer.is_exceeded(len(kept), size))):
            _, key = heapq.heappop(queue)
            row = kept.pop(key).row
            size -= _size(key, row)
            passed.pop(key, None)
            passed[key] = row
        if buffer.is_exceeded(len(kept), size):
            raise ConfigurationError(_full(buffer, len(kept), size))
    return Passed(list(passed.values()), kept, stream_ms)


def _size(key: str, row: str) -> int:
    return len(key.encode()) + len(row.encode())


def _full(buffer: Buffer, records: int, size: int) -> str:
    most = [
        f"{bound} {unit}"
        for bound, unit in ((buffer.max_records, "records"), (buffer.max_bytes, "bytes"))
        if bound is not None
    ]
    return (
        f"a suppress buffer is full: it would hold {records} records of {size} bytes, and may hold "
        f"{' and '.join(most)} in a partition. Raise the bound, shorten the wait, or let it emit early: a start with "
        "that goes on where this one ended"
    )


def _check_wait(what: str, wait: timedelta) -> None:
    if wait < timedelta(0) or wait % timedelta(milliseconds=1):
        raise ConfigurationError(f"suppress: {what}={wait} must be whole milliseconds, and not negative")
