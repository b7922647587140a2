"""From an input record to the changelog positions that hold what became of it.

The processor says in the commits topic, after each micro-batch, how far its inputs are in and where its changelog ended
then. So the first commit that has a record tells which position a replica must have reached to show it. That is all
that "read at least my record" needs: the read itself waits for a position, as any other (`at_least`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.positions import Token
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import fleet_service_pb2

# Commits remembered of a store. For a record from before them the oldest one serves: its position is later than needed.
_TAIL: Final = 1_000
_MAX_WAITS: Final = 10_000

TopicPartition = tuple[str, int]


def latest(records: Iterable[fleet_service_pb2.InputRecord]) -> Mapping[TopicPartition, int]:
    """Return the largest offset of each topic partition that records name.

    Raises:
        LookupFailure: INVALID_REQUEST, there are none, or one has a negative offset.

    """
    found: dict[TopicPartition, int] = {}
    for record in records:
        place = (record.topic, record.partition)
        if record.offset < 0:
            # What a producer is told of a record that was not delivered: nothing will ever be processed of that.
            message = f"offset {record.offset} of {record.topic}:{record.partition} is negative; was it delivered?"
            raise LookupFailure(Reason.INVALID_REQUEST, message)
        found[place] = max(record.offset, found.get(place, 0))
    if not found:
        raise LookupFailure(Reason.INVALID_REQUEST, "no records are named")
    return found


@dataclass(frozen=True, slots=True)
class _Commit:
    """Next offsets: of the inputs that are in, and of the changelog's partitions thereafter."""

    sources: Mapping[TopicPartition, int]
    changelog: Mapping[int, int]

    def has(self, records: Mapping[TopicPartition, int]) -> bool:
        return all(self.sources.get(place, 0) > offset for place, offset in records.items())


class CommitTail:
    """The latest commits of one store. Pure."""

    def __init__(self) -> None:
        """Know of none."""
        self._query_id = ""
        self._batch_id = -1
        self._commits: deque[_Commit] = deque(maxlen=_TAIL)

    def feed(self, commit: commits_pb2.Commit) -> None:
        """Take a record of the commits topic; one that repeats a batch says nothing new.

        A query that began anew, with another checkpoint, reads its inputs again: what an earlier one had is no matter.
        """
        if commit.query_id != self._query_id:
            self._commits.clear()
            self._query_id, self._batch_id = commit.query_id, -1
        if commit.batch_id <= self._batch_id:
            return
        self._batch_id = commit.batch_id
        sources = {(each.topic, each.partition): each.offset for each in commit.source_ends}
        self._commits.append(_Commit(sources, {each.partition: each.offset for each in commit.changelog_ends}))

    def positions(self, records: Mapping[TopicPartition, int]) -> Mapping[int, int] | None:
        """Return the changelog position to reach, by partition, to see records given by their offsets; None: not yet.

        Raises:
            LookupFailure: INVALID_REQUEST, a topic is none of the store's inputs.

        """
        if not self._commits:
            return None
        topics = {topic for topic, _ in self._commits[-1].sources}
        for topic, _ in records:
            if topic not in topics:
                raise LookupFailure(
                    Reason.INVALID_REQUEST, f"{topic} is no input of the store; it has {', '.join(sorted(topics))}"
                )
        found = None
        for commit in reversed(self._commits):
            if not commit.has(records):
                break
            found = commit.changelog
        return found


class Inputs:
    """The commits of all stores, and who waits for one. Lives on the event loop."""

    def __init__(self) -> None:
        """Know of none."""
        self._tails: dict[str, CommitTail] = {}
        self._changed = asyncio.Event()
        self._waits = 0

    def on_commit(self, commit: commits_pb2.Commit) -> None:
        """Take a record of the commits topic."""
        self._tails.setdefault(commit.store, CommitTail()).feed(commit)
        self._changed.set()
        self._changed = asyncio.Event()

    async def processed(self, store: str, records: Mapping[TopicPartition, int], deadline: Deadline) -> Token:
        """Wait until the processor has committed the records, given by their offsets; return what a read must reach.

        Raises:
            LookupFailure: INPUT_NOT_PROCESSED, INVALID_REQUEST or OVERLOADED.

        """
        if self._waits >= _MAX_WAITS:
            raise LookupFailure(Reason.OVERLOADED, f"{_MAX_WAITS} calls wait for the processor, as many as are taken")
        self._waits += 1
        try:
            async with asyncio.timeout_at(deadline.at):
                while (positions := self._positions(store, records)) is None:
                    await self._changed.wait()
        except TimeoutError:
            raise self._unprocessed(store) from None
        finally:
            self._waits -= 1
        return Token({(store, partition): position for partition, position in positions.items()})

    def _positions(self, store: str, records: Mapping[TopicPartition, int]) -> Mapping[int, int] | None:
        tail = self._tails.get(store)
        return None if tail is None else tail.positions(records)

    def _unprocessed(self, store: str) -> LookupFailure:
        what = "has not committed the records" if store in self._tails else "has never committed anything"
        return LookupFailure(
            Reason.INPUT_NOT_PROCESSED,
            f"the processor of store {store} {what} within the time there was",
            {"store": store},
        )
