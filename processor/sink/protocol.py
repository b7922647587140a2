"""The sink's protocol: one Kafka transaction per sink partition and batch, with a marker that the batch is done.

The marker is the last committed batch's id + 1, kept as an offset of a consumer group that names the Spark query,
and sent with the data in one transaction. An attempt initialises (which fences every earlier producer of the
partition), then reads the marker, then writes; so
- when a batch runs again, partitions that committed it skip it,
- an attempt that stalled before its writes is fenced at its first write, and an attempt that initialises late reads
  the newer marker. So to initialise again is always safe, and producers may be kept.
A kept producer that isn't fenced wrote last: it remembers the marker and doesn't read it.

A claim is a marker of a batch that isn't written: it keeps older ones from being written meanwhile. The offset's
metadata tells it from a written batch's marker, because who meets it must not take the partition for up to date.

Limits: the marker of an idle group expires (7 days by broker default). If Spark leaves a batch uncommitted for that
long, the batch is written again, which is harmless for keyed upserts. With a new checkpoint, batch ids start again,
and the group's name has the query's new id.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from processor.sink.store_values import ANY_VALUES, StoreValues
from statehouse.kafka import clients, codes
from statehouse.kafka.access import needing
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, Tries, meaning_of
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.settings.brokers import Brokers

log = structlog.get_logger(__name__)

_RPC_TIMEOUT_S: Final = 10.0
WRITES: Final = BackoffPolicy("sink_partition", first_s=0.05, longest_s=1.0)
"""Pauses before the sink initialises a partition again."""
_MARKERS: Final = BackoffPolicy("sink_markers", first_s=0.05, longest_s=0.05)
# A librdkafka producer has some threads and buffers; a worker rarely serves more partitions than this.
_WRITERS_MAX: Final = 64
_IDLE_S: Final = 120.0
_CLAIM: Final = "claim"


class WriteTimeout(Exception):
    """A partition's batch could not be committed in time; Spark runs the task again."""


class ForeignClaim(Exception):
    """Somebody else has claimed the partition for a newer batch, and has not written that: it may lack this one."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic that a query writes to. `name` is the name of its store, or else of the topic."""

    name: str
    topic: str
    partition_count: int
    record_cache: bool = False
    """Whether only the last row of each key in a batch is written."""
    values: StoreValues = ANY_VALUES
    """The store behind the topic, whose values are to be readable."""


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The target of a query's batches; all tasks have the same one.

    One transaction of sink partition p writes partition p of every output that has so many partitions.
    """

    brokers: Brokers | str
    application_id: str
    query: str
    outputs: tuple[OutputTopic, ...]
    dead_letters_topic: str
    dead_letters_partition_count: int
    query_id: str = ""
    """Spark's id from the checkpoint; set at the first batch, because Spark chooses it when the query starts."""
    transaction_timeout_s: float = field(kw_only=True)
    write_timeout_s: float = field(kw_only=True)

    @property
    def partition_count(self) -> int:
        """Number of sink partitions: the partition count of the largest output."""
        return self._largest.partition_count

    @property
    def marker_topic(self) -> str:
        """The topic for whose partitions the markers are committed as offsets; they don't refer to its records.

        An output added later with more partitions replaces it: then an unfinished batch is written once more, which is
        harmless for keyed upserts.
        """
        return self._largest.topic

    @property
    def _largest(self) -> OutputTopic:
        return max(self.outputs, key=lambda output: output.partition_count)  # the first among equals

    @property
    def marker_group(self) -> str:
        """The consumer group with the markers as its offsets."""
        return f"{self.application_id}-{self.query_id}-sink"

    def transactional_id(self, partition: int) -> str:
        """The transactional id of a sink partition; its last initialised producer is the only writer."""
        return f"{self.application_id}-{self.query}-{partition}"


Produce = Callable[[Producer], None]
"""Produces the records of a partition; called again if the transaction must be repeated."""


class PartitionWriter:
    """Writes batches to one sink partition. Not thread-safe."""

    def __init__(self, target: SinkTarget, partition: int) -> None:
        self._target, self._partition = target, partition
        self._producer: TransactionalProducer | None = None
        self.retries = 0
        """Number of retries of the newest write."""
        self._marker = 0
        self._is_claim = False
        self._group: object = None
        """The group of the marker, in the form that a transaction needs to commit it."""
        self._rpc_timeout_s = min(_RPC_TIMEOUT_S, target.write_timeout_s)

    def write(self, batch_id: int, produce: Produce) -> bool:
        """Commit a batch once; return False if it was committed before.

        Raises:
            ForeignClaim: it is claimed for a newer batch.
            WriteTimeout: it took longer than the target's `write_timeout_s`; the last error is the cause.
            KafkaException: the brokers refuse, and a retry would not help.

        """
        is_written = self._commit(batch_id, produce)
        if not is_written and self._is_claim:
            raise ForeignClaim(
                f"partition {self._partition} of query {self._target.query} is claimed for batch {self._marker}"
            )
        return is_written

    def claim(self, batch_id: int) -> None:
        """Let nobody write a batch before this one any more; nothing to do if that is so already.

        Raises:
            WriteTimeout, KafkaException: as `write` does.

        """
        self._commit(batch_id - 1, None)

    def _commit(self, batch_id: int, produce: Produce | None) -> bool:
        """Commit a batch's records and marker, or a claim if there are no records to produce; False if it is over."""
        backoff = Backoff(WRITES)
        tries = Tries(backoff, limit_s=self._target.write_timeout_s)
        while True:
            began, self.retries = time.monotonic(), backoff.failures
            try:
                producer = self._producer or self.initialise()
                if self._marker > batch_id:
                    return False
                self._transact(producer, batch_id, produce)
            except KafkaException as failure:
                error, meaning = failure.args[0], meaning_of(failure)
                self.close()
                if meaning is FailureMeaning.REFUSED:
                    raise
                if not tries.may_go_on:
                    raise WriteTimeout(
                        f"partition {self._partition} of query {self._target.query} could not be written in "
                        f"{self._target.write_timeout_s:g} s: {error.str()}"
                    ) from failure
                log.info("sink partition initialised again", partition=self._partition, reason=error.name())
                # Another attempt of this task may be running, as with speculative execution. It needs about as long as
                # this one has taken: an earlier retry would fence it, and be fenced by it in turn.
                is_fenced = meaning in {FailureMeaning.FENCED, FailureMeaning.OVER}
                tries.pause(least_s=time.monotonic() - began if is_fenced else 0.0)
            else:
                return True

    def initialise(self) -> TransactionalProducer:
        """Fence earlier producers, then read the marker."""
        target = self._target
        transactional_id = target.transactional_id(self._partition)
        options = {
            "transaction.timeout.ms": int(target.transaction_timeout_s * 1000),
            "linger.ms": 0,  # the commit flushes anyway
        }
        producer = TransactionalProducer(target.brokers, transactional_id, self._rpc_timeout_s, **options)
        producer.initialise()
        group: dict[str, str | int] = {"group.id": target.marker_group}
        # Don't keep the consumer: while no broker answers it costs 2 % of a core, and there may be many.
        markers = clients.consumer(target.brokers, transactional_id, **group)
        try:
            (committed,) = markers.committed([self._marker_at()], timeout=self._rpc_timeout_s)
            self._marker, self._is_claim = _offset(committed), committed.metadata == _CLAIM
            self._group = markers.consumer_group_metadata()
        finally:
            markers.close()
        self._producer = producer
        return producer

    def close(self) -> None:
        """Drop the producer; the next one aborts its open transaction, or the broker does after the timeout."""
        self._producer = None

    def _transact(self, producer: TransactionalProducer, batch_id: int, produce: Produce | None) -> None:
        def produce_with_marker(client: Producer) -> None:
            if produce is not None:
                produce(client)
            marker = self._marker_at(batch_id + 1, _CLAIM if produce is None else "")
            with needing("READ", f"group {self._target.marker_group}"):
                client.send_offsets_to_transaction([marker], self._group, self._rpc_timeout_s)

        try:
            producer.write(produce_with_marker)
        except KafkaException as failure:
            if meaning_of(failure) is FailureMeaning.LOST:
                producer.abort()
            raise
        except BaseException:
            producer.abort()
            self.close()
            raise
        self._marker, self._is_claim = batch_id + 1, produce is None

    def _marker_at(self, offset: int | None = None, metadata: str = "") -> TopicPartition:
        topic = self._target.marker_topic
        if offset is None:
            return TopicPartition(topic, self._partition)
        return TopicPartition(topic, self._partition, offset, metadata)


def newest_written(target: SinkTarget) -> int | None:
    """Return the newest batch in the markers of all partitions; None before the first one.

    Raises:
        KafkaException: the markers can't be read.

    """
    # Don't wait for a transaction that a driver left open: the next write to its partition aborts it.
    group: dict[str, str | int] = {"group.id": target.marker_group, "isolation.level": "read_uncommitted"}
    consumer = clients.consumer(target.brokers, f"{target.application_id}-start", **group)
    at = [TopicPartition(target.marker_topic, partition) for partition in range(target.partition_count)]
    tries = Tries(Backoff(_MARKERS), limit_s=target.write_timeout_s)
    try:
        while True:
            try:
                newest = max(_offset(marker) for marker in consumer.committed(at, timeout=_RPC_TIMEOUT_S))
            except KafkaException as failure:
                if meaning_of(failure) is FailureMeaning.REFUSED or not tries.may_go_on:
                    raise
                tries.pause()
            else:
                return newest - 1 if newest > 0 else None
    finally:
        consumer.close()


def _offset(marker: TopicPartition) -> int:
    """Return the offset of a committed marker, 0 if there is none yet."""
    if marker.error is not None:
        raise KafkaException(marker.error)
    return max(0, int(marker.offset))


def produce_record(
    producer: Producer,
    topic: str,
    partition: int,
    *,
    key: bytes | None,
    value: bytes | None,
    timestamp: int,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> None:
    """Produce one record; wait for room if the queue is full.

    Raises:
        KafkaException: the record can't be produced, or the queue stayed full for too long.

    """
    deadline = time.monotonic() + _RPC_TIMEOUT_S
    while True:
        try:
            producer.produce(
                topic, partition=partition, key=key, value=value, timestamp=timestamp, headers=headers or []
            )
        except BufferError:
            if time.monotonic() >= deadline:
                raise KafkaException(KafkaError(codes.QUEUE_FULL)) from None
            producer.poll(0.05)
        else:
            return


class WriterCache:
    """Keeps the writers of a worker process, because to initialise one costs ten times as much as a small commit.

    It drops writers that were idle for long when another one is used. Writers cost threads, and while no broker
    answers, a core per eighty writers.
    """

    def __init__(
        self, limit: int = _WRITERS_MAX, idle_s: float = _IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._idle_s, self._clock = limit, idle_s, clock
        self._lock = threading.Lock()
        self._writers: OrderedDict[tuple[SinkTarget, int], tuple[PartitionWriter, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of kept writers."""
        return len(self._writers)

    def writer(self, target: SinkTarget, partition: int) -> PartitionWriter:
        """Return the writer of a partition; the same one as last time if it is still kept."""
        forgotten = []  # destroyed at return, outside the lock, because closing a producer takes a moment
        with self._lock:
            now = self._clock()
            kept = self._writers.pop((target, partition), None)
            writer = PartitionWriter(target, partition) if kept is None else kept[0]
            self._writers[target, partition] = writer, now
            while len(self._writers) > self._limit or now - next(iter(self._writers.values()))[1] > self._idle_s:
                forgotten.append(self._writers.popitem(last=False))
        return writer


WRITERS = WriterCache()
