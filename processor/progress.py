"""What a query's progress says: figures of a batch, and how long a backlog will take. Pure.

Spark reports a progress after each batch, as JSON (`StreamingQueryProgress`). Its offsets are next offsets.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

SUPPRESS_BUFFERS: Final = "statehouse_suppress"
"""The name under which a query observes what its suppress buffers hold, in the field BUFFERS."""
BUFFERS: Final = "buffers"

_WINDOW_S: Final = 30.0
_BATCHES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A source topic in a batch, its partitions summed."""

    read: int
    """Offsets the batch went on by; transaction markers have offsets, too."""
    left: int
    """Commit lag: offsets that the topic held beyond those when the batch began."""


@dataclass(frozen=True, slots=True)
class BufferSize:
    """What a partition's suppress buffer holds after a batch."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch that a query has done."""

    query: str
    batch_id: int
    ended_at_s: float
    """Of the epoch, by the driver's clock."""
    duration_s: float
    """The whole batch: asking for offsets, planning, running, writing, committing."""
    input_rows: int
    """Rows read of all sources; a source that the query reads in two places counts twice."""
    input_rows_per_s: float
    """Since the batch before began; 0 for a query's first."""
    topics: Mapping[str, TopicProgress]
    state_rows: int
    """Of all state operators."""
    state_bytes: int
    """Memory of their state stores."""
    late_rows: int
    """Rows that state operators dropped because the watermark had passed them."""
    watermark_ms: int | None
    """Event time up to which the batch took rows for late; None: none yet."""
    buffers: Mapping[int, BufferSize] = field(default_factory=dict)
    """Suppress buffers by partition: those that the batch had updates for."""

    @property
    def read(self) -> int:
        """Offsets the batch went on by."""
        return sum(topic.read for topic in self.topics.values())

    @property
    def left(self) -> int:
        """The backlog: offsets that the sources held beyond what was processed, when the batch began."""
        return sum(topic.left for topic in self.topics.values())

    @classmethod
    def parse(cls, text: str) -> BatchProgress:
        """Take Spark's JSON.

        Raises:
            ValueError, KeyError, TypeError: it isn't of the form that this Spark writes.

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
            watermark_ms=watermark_ms or None,  # the epoch's begin stands for none
            buffers=_buffers(progress.get("observedMetrics") or {}),
        )


def _topics(source: Mapping[str, Any]) -> dict[str, TopicProgress]:
    """Return a source's topics; none if it isn't Kafka, whose offsets are by topic and partition."""
    end, latest = source["endOffset"], source.get("latestOffset")
    if not isinstance(end, dict) or not all(isinstance(partitions, dict) for partitions in end.values()):
        return {}
    start = source["startOffset"]
    found = {}
    for topic, ends in end.items():
        # Before the first batch there is no offset; the rows read are the next best.
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
    """How far a query is with its backlog."""

    records_left: int
    """Offsets, so an upper bound on records."""
    records_per_s: float
    """Processed."""
    eta_s: float | None
    """Seconds until nothing is left, arrivals going on as they do; None: it doesn't shrink."""


class Backlog:
    """A query's last batches, as long as each leaves something."""

    def __init__(self) -> None:
        """Begin without any."""
        self._batches: deque[BatchProgress] = deque(maxlen=_BATCHES_MAX)

    def take(self, batch: BatchProgress) -> BacklogStatus:
        """Take a batch; return where the query is after it."""
        batches = self._batches
        if batches and batches[-1].batch_id >= batch.batch_id:  # begun anew, or a batch that is done again
            batches.clear()
        batches.append(batch)
        while len(batches) > 2 and batch.ended_at_s - batches[0].ended_at_s > _WINDOW_S:
            batches.popleft()
        status = estimate(batches)
        if batch.left == 0:
            batches.clear()
        return status


def estimate(batches: Sequence[BatchProgress]) -> BacklogStatus:
    """Return where a query is after its last batches (at least one), in their order.

    The speed is that of the batches' own time. What is left shrinks more slowly, as more arrives meanwhile: that is
    seen between the first and the last of them, and the time to go is by that. One batch alone shows no arrivals.
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
    """When to tell of a backlog: at most every `interval_s`, nothing of one that takes less, and once that it is over.

    The first time is an interval after the batch that found it.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._said_at_s: float | None = None
        self._is_told = False

    def is_due(self, now_s: float, left: int) -> bool:
        """Whether to tell after a batch that left so much (0: that it is over)."""
        if left == 0:
            was_told, self._is_told, self._said_at_s = self._is_told, False, None
            return was_told
        if self._said_at_s is None:
            self._said_at_s = now_s
        if now_s - self._said_at_s < self._interval_s:
            return False
        self._said_at_s, self._is_told = now_s, True
        return True
