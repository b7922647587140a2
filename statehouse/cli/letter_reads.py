"""Reads an application's dead letters, and what was replayed of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message, TopicPartition

from statehouse.contract.dead_letters import DeadLetter, ReplayNote, decode
from statehouse.contract.topology import dead_letters_topic
from statehouse.errors import ConfigurationError, ContractError
from statehouse.kafka import clients
from statehouse.kafka.offsets import earliest_offsets, settled_offsets
from statehouse.kafka.ranges import FOREVER, OffsetRange, ranges_at, read_ranges, timestamp_ms
from statehouse.kafka.topics import partition_counts
from statehouse.runtime.brokers import Brokers

_OFFSETS_FOR_EACH: Final = 4
"""The offsets that are read first for each dead letter that is shown: transactions take some, too."""
_WIDER: Final = 8
"""How many times more are read next, if these were too few."""


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A dead letter, and when it was last replayed; None if never."""

    letter: DeadLetter
    replayed_at_ms: int | None

    @property
    def place(self) -> str:
        """PARTITION:OFFSET in the topic of dead letters."""
        return f"{self.letter.partition}:{self.letter.offset}"


class Letters:
    """The dead letters of an application since a time, epoch milliseconds, or all; up to the end at the last `refresh`.

    Attributes:
        topic: the topic that they are in.
        foreign: how many records of the last read were neither dead letters nor notes.

    """

    def __init__(self, brokers: Brokers, application_id: str, since_ms: int | None, timeout_s: float) -> None:
        self.brokers, self.application_id, self.timeout_s = brokers, application_id, timeout_s
        self._since_ms = since_ms
        self.topic = dead_letters_topic(application_id)
        self.client_id = f"{application_id}-dead-letters-reader"
        self.foreign = 0
        self._begins: Mapping[int, int] = {}
        self._ends: Mapping[int, int] = {}

    def refresh(self) -> None:
        """Find where they begin and end now: what was committed before is before the end.

        Raises:
            ConfigurationError: the application has no such topic.
            KafkaException: the brokers can't be reached, or refuse.

        """
        admin = clients.admin(self.brokers, self.client_id)
        count = partition_counts(admin, [self.topic], self.timeout_s)[self.topic]
        if count is None:
            raise ConfigurationError(
                f"there is no topic {self.topic} at {self.brokers}: the processor makes it at its first start; check "
                "--application-id and --bootstrap"
            )
        places = [(self.topic, partition) for partition in range(count)]
        ends = settled_offsets(admin, places, self.timeout_s)
        self._ends = {partition: end for (_, partition), end in ends.items()}
        if self._since_ms is None:
            firsts = earliest_offsets(admin, places, self.timeout_s)
            self._begins = {partition: firsts.get((self.topic, partition), 0) for partition in self._ends}
        else:
            self._begins = self._offsets_since(self._since_ms)

    def newest(self, limit: int, is_wanted: Callable[[DeadLetter], bool]) -> list[ListedLetter]:
        """Return the newest dead letters that are wanted, `limit` at most, the oldest of them first.

        Raises:
            LookupFailure, KafkaException: they can't be read.

        """
        span = limit * _OFFSETS_FOR_EACH
        while True:
            begins = {partition: max(begin, self._ends[partition] - span) for partition, begin in self._begins.items()}
            replayed: dict[tuple[int, int], int] = {}
            wanted = (letter for letter in self._read(self._ranges(begins), replayed) if is_wanted(letter))
            found = heapq.nlargest(limit, wanted, lambda letter: (letter.at_ms, letter.partition, letter.offset))
            if len(found) == limit or begins == self._begins:
                listed = [ListedLetter(each, replayed.get((each.partition, each.offset))) for each in found]
                return listed[::-1]
            span *= _WIDER

    def all(self, replayed: dict[tuple[int, int], int]) -> Iterator[DeadLetter]:
        """Yield all; when it has ended, `replayed` has the places of those that were replayed, with the last time.

        Raises:
            LookupFailure, KafkaException: they can't be read.

        """
        return self._read(self._ranges(self._begins), replayed)

    def at(self, places: Collection[tuple[int, int]]) -> Iterator[DeadLetter]:
        """Yield the dead letters at these places, by partition in their order; raises as `all` does."""
        ranges = ranges_at((self.topic, partition, offset) for partition, offset in places)
        wanted = frozenset(places)
        return (letter for letter in self._read(ranges, {}) if (letter.partition, letter.offset) in wanted)

    def coming(self) -> Iterator[DeadLetter]:
        """Yield those that are refused from now on; it never ends."""
        ranges = [OffsetRange(self.topic, partition, end, FOREVER) for partition, end in self._ends.items()]
        return self._read(ranges, {})

    def _ranges(self, begins: Mapping[int, int]) -> list[OffsetRange]:
        return [OffsetRange(self.topic, partition, begin, self._ends[partition]) for partition, begin in begins.items()]

    def _read(self, ranges: list[OffsetRange], replayed: dict[tuple[int, int], int]) -> Iterator[DeadLetter]:
        self.foreign = 0
        for message in read_ranges(self.brokers, ranges, self.client_id, self.timeout_s):
            try:
                read = _decoded(message)
            except ContractError:
                self.foreign += 1
                continue
            if isinstance(read, ReplayNote):
                replayed[read.partition, read.letter_offset] = read.at_ms
            else:
                yield read

    def _offsets_since(self, since_ms: int) -> dict[int, int]:
        """Return the first offset of each partition whose record isn't older; its end if all are."""
        consumer = clients.consumer(self.brokers, self.client_id)
        try:
            asked = [TopicPartition(self.topic, partition, since_ms) for partition in self._ends]
            found = {each.partition: each.offset for each in consumer.offsets_for_times(asked, timeout=self.timeout_s)}
        finally:
            consumer.close()
        return {partition: end if found[partition] < 0 else found[partition] for partition, end in self._ends.items()}


def _decoded(message: Message) -> DeadLetter | ReplayNote:
    place = int(message.partition() or 0), int(message.offset() or 0)
    return decode(place, timestamp_ms(message), message.key(), message.value(), message.headers() or ())
