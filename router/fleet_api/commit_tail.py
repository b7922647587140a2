"""The latest commits of a store: what each includes of the inputs, and where its changelog ended. Pure.

After each micro-batch the processor writes to the commits topic how far it has read its inputs and where its changelog
ended. So the first commit that includes a record tells the position at which a replica shows the record's results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from statehouse.contract.moments import MomentToken, unavailable
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, types_pb2

# Commits remembered for each store. For an older record the oldest commit serves: its position is later than needed.
_TAIL: Final = 1_000
# Topic partitions whose records one call may wait for: each commit is compared with all of them.
_PARTITIONS_MAX: Final = 1_000

TopicPartition = tuple[str, int]


def latest(records: Iterable[fleet_service_pb2.InputRecord]) -> Mapping[TopicPartition, int]:
    """Return the largest offset that the records name in each topic partition.

    Raises:
        LookupFailure: INVALID_REQUEST, there are no records, or of too many partitions, or one has a negative offset.

    """
    found: dict[TopicPartition, int] = {}
    for record in records:
        place = (record.topic, record.partition)
        if record.offset < 0:
            # A producer reports this for a record that was not delivered; it will never be processed.
            message = f"offset {record.offset} of {record.topic}:{record.partition} is negative; was it delivered?"
            raise LookupFailure(Reason.INVALID_REQUEST, message)
        found[place] = max(record.offset, found.get(place, 0))
    if len(found) > _PARTITIONS_MAX:
        message = f"records of more than {_PARTITIONS_MAX:,} topic partitions are named: wait for them by several calls"
        raise LookupFailure(Reason.INVALID_REQUEST, message)
    if not found:
        raise LookupFailure(Reason.INVALID_REQUEST, "no records are named")
    return found


def named(moments: types_pb2.Moments) -> MomentToken:
    """Return the moments that a request names.

    Raises:
        LookupFailure: INVALID_REQUEST, one is negative, or there are too many.

    """
    try:
        return MomentToken.from_proto(moments)
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from None


@dataclass(frozen=True, slots=True)
class _Commit:
    """One commit: the next offsets of the inputs, and of the changelog's partitions, when it was made.

    `is_moment`: reads can be of its batch.
    """

    batch_id: int
    is_moment: bool
    sources: Mapping[TopicPartition, int]
    changelog: Mapping[int, int]

    def has(self, records: Mapping[TopicPartition, int]) -> bool:
        return all(self.sources.get(place, 0) > offset for place, offset in records.items())


class CommitTail:
    """The latest commits of one store."""

    def __init__(self) -> None:
        self._query_id = ""
        self._batch_id = -1
        self._commits: deque[_Commit] = deque(maxlen=_TAIL)

    def feed(self, commit: commits_pb2.Commit) -> None:
        """Take a record of the commits topic; a repeated batch changes nothing.

        A query that began anew, with another checkpoint, reads its inputs again: earlier commits no longer count. So
        do those of a later batch than the query is at: it began again further back, or they were never its own.
        """
        if commit.no_batch and not commit.source_ends:
            return  # the query has had nothing to read, and no batch: its first one is to come
        if commit.query_id != self._query_id or commit.batch_id < self._batch_id:
            self._commits.clear()
            self._query_id, self._batch_id = commit.query_id, -1
        if commit.batch_id == self._batch_id:
            if commit.is_moment:  # a processor that starts may know only later where its last batch ends
                self._commits[-1] = replace(self._commits[-1], is_moment=True)
            return
        self._batch_id = commit.batch_id
        sources = {(each.topic, each.partition): each.offset for each in commit.source_ends}
        changelog = {each.partition: each.offset for each in commit.changelog_ends}
        self._commits.append(_Commit(commit.batch_id, commit.is_moment, sources, changelog))

    def moment(self, store: str, asked: MomentToken) -> fleet_service_pb2.GetMomentResponse:
        """Return the batch that is asked for, or the newest one; reads can be of it.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE, MOMENT_GONE or MOMENT_NOT_REACHED.

        """
        moments = {each.batch_id: each for each in self._commits if each.is_moment}
        if not moments:
            raise unavailable(store, "its processor has told the end of no batch yet")
        newest = max(moments)
        wanted = asked.batch(self._query_id) if asked else newest
        found = None if wanted is None else moments.get(wanted)
        if wanted is None or found is None:
            is_ahead = wanted is not None and wanted > newest
            raise LookupFailure(
                Reason.MOMENT_NOT_REACHED if is_ahead else Reason.MOMENT_GONE,
                f"this router knows {len(moments)} batches of store {store}, the newest is {newest} of query "
                f"{self._query_id}; {asked!r} is not one of them",
                {"store": store, "query_id": self._query_id, "newest": str(newest)},
            )
        ends = [
            fleet_service_pb2.InputEnd(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in sorted(found.sources.items())
        ]
        moment = types_pb2.Moment(query_id=self._query_id, batch_id=wanted)
        return fleet_service_pb2.GetMomentResponse(moment=moment, source_ends=ends)

    def sources_at(self, reached: Mapping[int, int]) -> Mapping[TopicPartition, int] | None:
        """Return where the inputs ended of what the changelog has up to these positions, by partition.

        None: a batch that reaches so far is not committed yet.
        """
        for commit in self._commits:
            if all(commit.changelog.get(partition, 0) >= position for partition, position in reached.items()):
                return commit.sources
        return None

    @property
    def newest_sources(self) -> Mapping[TopicPartition, int]:
        """Where the inputs ended of the newest commit."""
        return self._commits[-1].sources if self._commits else {}

    def moment_with(self, records: Mapping[TopicPartition, int]) -> MomentToken:
        """Return the first batch that includes the records and that reads can be of; empty if there is none."""
        found = (each.batch_id for each in self._commits if each.is_moment and each.has(records))
        return MomentToken({self._query_id: batch_id} if (batch_id := next(found, None)) is not None else {})

    def positions(self, records: Mapping[TopicPartition, int]) -> Mapping[int, int] | None:
        """Return the changelog positions, by partition, that include the records' results; None: not committed yet.

        `records` gives the largest offset for each topic partition.

        Raises:
            LookupFailure: INVALID_REQUEST, a topic is not an input of the store.

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
