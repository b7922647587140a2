"""Parses a query's progress reports, and estimates how long a backlog will take. Pure.

Spark reports progress after each batch, as JSON (`StreamingQueryProgress`). The offsets in it are next offsets.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

SUPPRESS_BUFFERS: Final = "statehouse_suppress"
"""The name of the observation with the sizes of a query's suppress buffers, in the field BUFFERS."""
BUFFERS: Final = "buffers"

_WINDOW_S: Final = 30.0
_BATCHES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A source topic in a batch, summed over its partitions."""

    read: int
    """Offsets that the batch advanced by, those of transaction markers included."""
    left: int
    """Commit lag: offsets beyond the batch that the topic held when the batch began."""


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The size of a partition's suppress buffer after a batch."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A finished batch of a query."""

    query: str
    batch_id: int
    ended_at_s: float
    """Seconds since the epoch, by the driver's clock."""
    duration_s: float
    """The time of the whole batch: asking for offsets, planning, running, writing, committing."""
    input_rows: int
    """Rows read from all sources; a source that the query reads in two places counts twice."""
    input_rows_per_s: float
    """Rate since the start of the previous batch; 0 for the first batch of a query."""
    topics: Mapping[str, TopicProgress]
    state_rows: int
    """Rows in the state of all operators."""
    state_bytes: int
    """Memory of all state stores."""
    late_rows: int
    """Rows that state operators dropped because the watermark had passed them."""
    watermark_ms: int | None
    """Event time before which the batch treated rows as late; None: no watermark yet."""
    buffers: Mapping[int, BufferSize] = field(default_factory=dict)
    """Suppress buffers by partition; only partitions with updates in the batch."""

    @property
    def read(self) -> int:
        """Offsets that the batch advanced by."""
        return sum(topic.read for topic in self.topics.values())

    @property
    def left(self) -> int:
        """The backlog: offsets beyond the batch that the sources held when the batch began."""
        return sum(topic.left for topic in self.topics.values())

    @classmethod
    def parse(cls, text: str) -> BatchProgress:
        """Parse Spark's JSON.

        Raises:
            ValueError, KeyError, TypeError: the text isn't in the format that this Spark version writes.

        """
        progress = json.loads(text)
        topics: dict[str, TopicProgress] = {}
        for source in progress["sources"]:
            topics |= _topics(source)
        operators = progress["stateOperators"]
        watermark_ms = _epoch_ms(progress.get("eventTime", {}).get("watermark"))
        duration_s = progress["batchDuration"] / 1000
        return cls(
            query=progress["name"] or "",
            batch_id=progress["batchId"],
            ended_at_s=(_epoch_ms(progress["timestamp"]) or 0) / 1000 + duration_s,
            duration_s=duration_s,
            input_rows=progress["numInputRows"],
            input_rows_per_s=float(progress.get("inputRowsPerSecond") or 0),
            topics=topics,
            state_rows=sum(operator["numRowsTotal"] for operator in operators),
            state_bytes=sum(operator["memoryUsedBytes"] for operator in operators),
            late_rows=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
            watermark_ms=watermark_ms or None,  # 0 means no watermark
            buffers=_buffers(progress.get("observedMetrics") or {}),
        )


def _topics(source: Mapping[str, Any]) -> dict[str, TopicProgress]:
    """Return the topics of a source; empty if it isn't Kafka (only Kafka has offsets by topic and partition)."""
    end, latest = source["endOffset"], source.get("latestOffset")
    if not isinstance(end, dict) or not all(isinstance(partitions, dict) for partitions in end.values()):
        return {}
    start = source["startOffset"]
    found = {}
    for topic, ends in end.items():
        # Before the first batch there is no offset; the number of rows read is the best substitute.
        starts = start.get(topic, {}) if isinstance(start, dict) else None
        read = source["numInputRows"] if starts is None else sum(ends.values()) - sum(starts.values())
        lasts = latest.get(topic, {}) if isinstance(latest, dict) else {}
        left = sum(max(0, lasts.get(partition, offset) - offset) for partition, offset in ends.items())
        found[topic] = TopicProgress(max(0, read), left)
    return found


def _buffers(observed: Mapping[str, Any]) -> dict[int, BufferSize]:
    sizes = observed.get(SUPPRESS_BUFFERS, {}).get(BUFFERS) or []
    return {size["partition"]: BufferSize(size["records"], size["bytes"]) for size in sizes}


def _epoch_ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class BacklogStatus:
    """The state of a query's backlog."""

    records_left: int
    """Counted as offsets, so an upper bound on records."""
    records_per_s: float
    """The rate of processing."""
    eta_s: float | None
    """Seconds until the backlog is empty if arrivals continue at their rate; None: it doesn't shrink."""


class Backlog:
    """The last batches of a query since its backlog began."""

    def __init__(self) -> None:
        """Start without batches."""
        self._batches: deque[BatchProgress] = deque(maxlen=_BATCHES_MAX)

    def take(self, batch: BatchProgress) -> BacklogStatus:
        """Add a batch; return the backlog after it."""
        batches = self._batches
        if batches and batches[-1].batch_id >= batch.batch_id:  # the query restarted, or the batch ran again
            batches.clear()
        batches.append(batch)
        while len(batches) > 2 and batch.ended_at_s - batches[0].ended_at_s > _WINDOW_S:
            batches.popleft()
        status = estimate(batches)
        if batch.left == 0:
            batches.clear()
        return status


def estimate(batches: Sequence[BatchProgress]) -> BacklogStatus:
    """Return the state of the backlog after the last batches (at least one), given in order.

    `records_per_s` counts only the time in batches. The backlog shrinks more slowly, because more records arrive; so
    `eta_s` uses the difference between the first and the last batch. One batch alone shows no arrivals.
    """
    first, last = batches[0], batches[-1]
    busy_s = sum(batch.duration_s for batch in batches)
    per_s = sum(batch.read for batch in batches) / busy_s if busy_s > 0 else 0.0
    elapsed_s = last.ended_at_s - first.ended_at_s
    shrinks_per_s = (first.left - last.left) / elapsed_s if elapsed_s > 0 else per_s
    if last.left == 0:
        return BacklogStatus(0, per_s, 0.0)
    return BacklogStatus(last.left, per_s, last.left / shrinks_per_s if shrinks_per_s > 0 else None)


class BacklogReports:
    """Decides when to log a backlog: first after `interval_s`, then at most every `interval_s`, and once at its end.

    A backlog that lasts less than `interval_s` is never logged.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._said_at_s: float | None = None
        self._is_told = False

    def is_due(self, now_s: float, left: int) -> bool:
        """Whether to log after a batch that left this many offsets (0: the backlog is over)."""
        if left == 0:
            was_told, self._is_told, self._said_at_s = self._is_told, False, None
            return was_told
        if self._said_at_s is None:
            self._said_at_s = now_s
        if now_s - self._said_at_s < self._interval_s:
            return False
        self._said_at_s, self._is_told = now_s, True
        return True
