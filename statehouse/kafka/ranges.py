"""Reads parts of topics: the committed records between offsets, each part once and in order."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from statehouse.errors import LookupFailure, Reason
from statehouse.kafka import clients, codes
from statehouse.runtime.brokers import Brokers

FOREVER: Final = 2**63 - 1
"""The end of a range that goes on with what is written later."""

_AT_ONCE: Final = 500
_LOOK_S: Final = 0.1
_GAP: Final = 200
"""To skip fewer offsets costs more than to read them."""
_PREFETCHED: Final = 1_000
"""The records that a consumer reads ahead, of each partition: a range may be short."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition from `begin` to before `end`."""

    topic: str
    partition: int
    begin: int
    end: int


def ranges_of(topic: str, partition: int, offsets: Collection[int]) -> list[OffsetRange]:
    """Return few ranges that have these offsets, in order: offsets that are close share one. Pure."""
    ordered = sorted(offsets)
    cuts = [number for number, (one, next_one) in enumerate(pairwise(ordered), 1) if next_one - one > _GAP]
    bounds = pairwise([0, *cuts, len(ordered)]) if ordered else ()
    return [OffsetRange(topic, partition, ordered[first], ordered[last - 1] + 1) for first, last in bounds]


def ranges_at(places: Iterable[tuple[str, int, int]]) -> list[OffsetRange]:
    """Return few ranges that have all these places, topic, partition and offset; see `ranges_of`. Pure."""
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, partition, offset in places:
        offsets[topic, partition].append(offset)
    return [each for at in sorted(offsets) for each in ranges_of(*at, offsets[at])]


def timestamp_ms(message: Message) -> int:
    """Return a record's timestamp, epoch milliseconds; 0 if it has none."""
    kind, time_ms = message.timestamp()
    return 0 if kind == TIMESTAMP_NOT_AVAILABLE else int(time_ms)


def read_ranges(
    brokers: Brokers | str, ranges: Sequence[OffsetRange], client_id: str, silence_s: float
) -> Iterator[Message]:
    """Yield the records in these ranges, in offset order by partition; return when all are read.

    Several ranges of a partition are given in their order. Records that retention or compaction has deleted are left
    out, and so are topics and partitions that don't exist. With a range to FOREVER it goes on, and no silence ends it.

    Raises:
        LookupFailure: UNREACHABLE, no broker has sent anything for `silence_s` seconds.
        KafkaException: the brokers refuse.

    """
    left: dict[tuple[str, int], deque[OffsetRange]] = {}
    options: dict[str, str | int] = {"auto.offset.reset": "earliest", "queued.min.messages": _PREFETCHED}
    consumer = clients.consumer(brokers, client_id, **options)
    try:
        ends = _ends(consumer, {(each.topic, each.partition) for each in ranges}, silence_s)
        for each in ranges:
            end = ends.get((each.topic, each.partition), -1)
            if each.begin < min(end, each.end) or (each.end == FOREVER and end >= 0):
                left.setdefault((each.topic, each.partition), deque()).append(each)
        goes_on = any(each.end == FOREVER for each in ranges)
        consumer.assign([TopicPartition(*at, queue[0].begin) for at, queue in left.items()])
        heard_at = time.monotonic()
        while left:
            messages = consumer.consume(_AT_ONCE, _LOOK_S)
            if messages:
                heard_at = time.monotonic()
            elif not goes_on and time.monotonic() - heard_at > silence_s:
                said = f"{', '.join(sorted({at[0] for at in left}))} could not be read within {silence_s:g} s"
                raise LookupFailure(Reason.UNREACHABLE, said, {"target": str(brokers)})
            for message in messages:
                if _is_in(message, left):
                    yield message
            _skip(consumer, left)
    finally:
        consumer.close()


def _is_in(message: Message, left: dict[tuple[str, int], deque[OffsetRange]]) -> bool:
    """Whether a message is a record of a range; ranges that are read leave."""
    at = str(message.topic()), int(message.partition() or 0)
    error, offset = message.error(), int(message.offset() or 0)
    if error is not None:
        if error.code() in codes.RIGHT_MISSING or error.fatal():
            raise KafkaException(error)
        if error.code() == codes.PARTITION_EOF and at in left and left[at][-1].end != FOREVER:
            del left[at]  # the log ends before the range does, or with it
        return False
    ranges = left.get(at)
    while ranges and offset >= ranges[0].end:
        ranges.popleft()
    if at in left and not left[at]:
        del left[at]
        return False
    return bool(ranges) and offset >= ranges[0].begin  # type: ignore[index] # what is true has elements


def _skip(consumer: Consumer, left: dict[tuple[str, int], deque[OffsetRange]]) -> None:
    """Go on at the next range, in partitions that are before it."""
    if not left:
        return
    for place in consumer.position([TopicPartition(*at) for at in left]):
        begin = left[place.topic, place.partition][0].begin
        if 0 <= place.offset < begin:
            consumer.seek(TopicPartition(place.topic, place.partition, begin))


def _ends(consumer: Consumer, wanted: Collection[tuple[str, int]], timeout_s: float) -> dict[tuple[str, int], int]:
    """Return the ends of the partitions that exist."""
    there = set()
    for topic in {topic for topic, _ in wanted}:
        described = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if described.error is not None and described.error.code() in codes.RIGHT_MISSING:
            raise KafkaException(described.error)
        there |= {(topic, partition) for partition in described.partitions}
    ends = {}
    for at in there & set(wanted):
        bounds = consumer.get_watermark_offsets(TopicPartition(*at), timeout=timeout_s)
        if bounds is None:
            raise KafkaException(KafkaError(codes.TIMED_OUT, f"no broker names the end of {at[0]}"))
        ends[at] = bounds[1]
    return ends
