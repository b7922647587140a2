"""Decides which updates of a table are held back, and when they pass, as Kafka Streams' `suppress` (KIP-328); pure.

A buffer keeps the last update of each key, at the place of the key's first one. Its stream time is the largest
timestamp of all updates so far. The wait of an update is stream time minus the time at which its wait starts.
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
    """What happens when a buffer would exceed its bound."""

    SHUT_DOWN = "shut_down"
    """The query ends, and the processor with it; no update passes before its time."""
    EMIT_EARLY = "emit_early"
    """The oldest updates pass before their time."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The bounds of one partition's buffer; without a bound the buffer takes all updates.

    Attributes:
        max_records: the largest number of keys.
        max_bytes: the largest size of keys and rows, as JSON text, in bytes.
        when_full: what happens beyond either bound.

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
        """Whether this number of records, or their size in bytes, exceeds a bound."""
        return (self.max_records is not None and records > self.max_records) or (
            self.max_bytes is not None and size > self.max_bytes
        )


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """An update passes when stream time is `wait` past the first held-back update of its key."""

    wait: timedelta
    buffer: Buffer

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        _check_wait("the time limit", self.wait)


@dataclass(frozen=True, slots=True)
class WindowCloses:
    """The update of a window passes when stream time is `wait`, the grace, past the end of the window.

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


class KeyUpdate(NamedTuple):
    """An update of a key."""

    key: str
    row: str
    timestamp_ms: int | None
    """None: the buffer's stream time."""
    since_ms: int | None
    """The start of its wait, if no update of its key is held back; None: its timestamp."""


class BufferedUpdate(NamedTuple):
    """The held-back update of a key: its last row, and the start of its wait."""

    since_ms: int
    row: str


class SuppressResult(NamedTuple):
    """The result of a batch: rows that pass, updates still held back, and the new stream time."""

    rows: list[str]
    buffered: dict[str, BufferedUpdate]
    stream_ms: int


def size_of(buffered: Mapping[str, BufferedUpdate]) -> int:
    """Return the size of a buffer, in bytes."""
    return sum(_size(key, each.row) for key, each in buffered.items())


def pass_on(
    buffered: Mapping[str, BufferedUpdate], stream_ms: int, changes: Iterable[KeyUpdate], suppression: Suppression
) -> SuppressResult:
    """Apply the changes of a batch in order; return rows that pass, updates still held back, and the new stream time.

    Each change enters the buffer; then all due updates pass, the longest waiting first. If a key passes twice in a
    batch, only its last row is put out.

    Raises:
        ConfigurationError: the buffer is full, and `when_full` says to shut down.

    """
    kept, buffer = dict(buffered), suppression.buffer
    wait_ms = suppression.wait // timedelta(milliseconds=1)
    # The queue has each key once: a key keeps its place until it is the first, and only then leaves the buffer.
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
        kept[change.key] = BufferedUpdate(since_ms, change.row)
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
    return SuppressResult(list(passed.values()), kept, stream_ms)


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
