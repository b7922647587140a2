"""Writes a query's batches as a processor's sink does, without Spark: `statehouse.sink.Task` and `StoreSink`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from processor.reports.commits import CommitsPublisher, QueryFailure, StoreChangelog
from processor.spark.checkpoint import Offsets
from statehouse.contract.batch_cuts import HEADER, header_value
from statehouse.control.v1 import commits_pb2
from tests.support.polling import poll_until

_TIMEOUT_S: Final = 30.0
_PASSING: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class Placed(NamedTuple):
    """A record of a batch, and the sink partition that it belongs to. Without a time it gets one when it is written."""

    store: str
    partition: int
    key: bytes
    value: bytes | None
    timestamp_ms: int = 0


class _EarlierPublisher(CommitsPublisher):
    def _write(self, records: list[commits_pb2.Commit], age_ms: int = 0, failure: QueryFailure | None = None) -> None:
        for record in records:
            record.ClearField("is_moment")
        super()._write(records, age_ms, failure)


class BatchWriter:
    """The writers of all sink partitions, and the reports in the commits topic.

    A new one takes over from one that was killed: it fences that, ends what it left open, and knows what it committed.
    """

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        changelogs: Sequence[StoreChangelog],
        query_id: str,
        *,
        query: str = "query",
        last: int | None = None,
        has_moments: bool = True,
    ) -> None:
        """Take over. `last`: the newest batch in Spark's checkpoint; None before the first one.

        `has_moments`: as processors write since there are moments; before that, no record and no report tells of them.
        """
        self._has_moments = has_moments
        self._topics = {each.store: each.topic for each in changelogs}
        self._query_id = query_id
        largest = max(changelogs, key=lambda each: each.partition_count)
        self._markers = [TopicPartition(largest.topic, each) for each in range(largest.partition_count)]
        group = {"group.id": f"{application_id}-{query_id}-sink", "enable.auto.commit": False}
        self._group = Consumer({"bootstrap.servers": bootstrap, **group})
        self._producers = [
            Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{application_id}-{query}-{each.partition}"})
            for each in self._markers
        ]
        for producer in self._producers:
            producer.init_transactions(_TIMEOUT_S)
        self._next = poll_until(self._committed_next, _TIMEOUT_S, "the group's coordinator to tell its markers")
        publisher = CommitsPublisher if has_moments else _EarlierPublisher
        self._commits = publisher(bootstrap, application_id, query, changelogs)
        self._commits.start()
        self._has_reported = False
        if last is not None:
            self._commits.publish(query_id, last, {}, idle=True)

    def _committed_next(self) -> list[int] | None:
        """Return the batch that each partition needs next; None while the group's coordinator is being found."""
        try:
            committed = self._group.committed(self._markers, timeout=_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in _PASSING:
                return None
            raise
        return [max(0, each.offset) for each in committed]

    def close(self) -> None:
        """Let go of the group; the producers end with this."""
        self._group.close()

    def write(self, batch_id: int, records: Iterable[Placed], sources: Offsets | None = None) -> None:
        """Write a batch, and report it. `sources`: where its inputs end; their topics must be there."""
        ends: Offsets = {}
        is_known = self._has_reported
        for partition, share in _shares(records).items():
            if self._next[partition] > batch_id:
                is_known = False
            else:
                ends |= self._begun(batch_id, partition, share)
                self._committed(batch_id, partition)
        self._commits.publish(self._query_id, batch_id, sources or {}, changelog_ends=ends if is_known else None)
        self._has_reported = True

    def write_half(self, batch_id: int, records: Iterable[Placed]) -> None:
        """Commit a batch in half of its partitions, and leave the next one's transaction open, as if killed there."""
        shares = _shares(records)
        for number, (partition, share) in enumerate(shares.items(), 1):
            self._begun(batch_id, partition, share)
            if number > len(shares) // 2:
                return
            self._committed(batch_id, partition)

    def _begun(self, batch_id: int, partition: int, share: Iterable[Placed]) -> Offsets:
        """Write a partition's records; return where they end."""
        producer, ends = self._producers[partition], Offsets()
        headers = [(HEADER, header_value(batch_id))] if self._has_moments else []

        def delivered(error: object, message: object) -> None:
            assert error is None, error
            ends[message.topic(), message.partition()] = message.offset() + 1  # type: ignore[attr-defined]

        producer.begin_transaction()
        marker = TopicPartition(self._markers[partition].topic, partition, batch_id + 1)
        producer.send_offsets_to_transaction([marker], self._group.consumer_group_metadata(), _TIMEOUT_S)
        for each in share:
            producer.produce(
                self._topics[each.store],
                key=each.key,
                value=each.value,
                partition=partition,
                timestamp=each.timestamp_ms,
                headers=headers,
                on_delivery=delivered,
            )
        assert producer.flush(_TIMEOUT_S) == 0
        return ends

    def _committed(self, batch_id: int, partition: int) -> None:
        self._producers[partition].commit_transaction(_TIMEOUT_S)
        self._next[partition] = batch_id + 1


def _shares(records: Iterable[Placed]) -> Mapping[int, list[Placed]]:
    shares: dict[int, list[Placed]] = {}
    for each in records:
        shares.setdefault(each.partition, []).append(each)
    return dict(sorted(shares.items()))
