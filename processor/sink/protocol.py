"""The sink's protocol: one Kafka transaction for each sink partition and batch, with a marker that says it is done.

The marker is the last committed batch's id + 1, kept as an offset of a consumer group that names the Spark query,
and sent with the data in one transaction. An attempt initialises (which fences every earlier producer of the
partition), then reads the marker, then writes; so
- a batch that is run again is skipped where it was committed,
- an attempt that stalled before its writes is fenced at its first one, and one that initialises late reads the newer
  marker. That is why initialising again is always safe, and producers may be kept.
A kept producer that isn't fenced was the last to write: it remembers the marker and needn't read it.

Limits: an idle group's marker expires (7 days by broker default); a batch left uncommitted by Spark for that long
is then written again, which is harmless for keyed upserts. Batch ids restart with a fresh checkpoint, and so does
the query's id in the group's name.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from statehouse.kafka import clients, codes

log = structlog.get_logger(__name__)

_RPC_TIMEOUT_S: Final = 10.0
_BACKOFF_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
# A librdkafka producer has some threads and buffers; a worker rarely serves more partitions than this.
_WRITERS_MAX: Final = 64
_IDLE_S: Final = 120.0


class WriteTimeout(Exception):
    """A partition's batch could not be committed within the time allowed; Spark runs the task again."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """One of the topics that a query writes to. `name` is the store's, or the topic's own."""

    name: str
    topic: str
    partition_count: int
    record_cache: bool = False
    """Whether only the last of a key's rows in a batch is written."""


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Where a query's batches go; the same for all its tasks.

    Sink partition p writes partition p of each output that has one, in one transaction.
    """

    bootstrap: str
    application_id: str
    query: str
    outputs: tuple[OutputTopic, ...]
    dead_letters_topic: str
    dead_letters_partition_count: int
    query_id: str = ""
    """Spark's, from the checkpoint; filled in at the first batch, as Spark chooses it when the query starts."""
    transaction_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    record_cache_max_bytes: int = 10_000_000

    @property
    def partition_count(self) -> int:
        """How many sink partitions there are: as many as the largest output has."""
        return self._largest.partition_count

    @property
    def marker_topic(self) -> str:
        """The topic whose partitions the markers are offsets of; they have nothing to do with its records.

        An output with more partitions that is added later takes its place: a batch that was under way is then written
        once more, which is harmless for keyed upserts.
        """
        return self._largest.topic

    @property
    def _largest(self) -> OutputTopic:
        return max(self.outputs, key=lambda output: output.partition_count)  # of several the first

    @property
    def marker_group(self) -> str:
        """The consumer group whose offsets are the markers."""
        return f"{self.application_id}-{self.query_id}-sink"

    def transactional_id(self, partition: int) -> str:
        """Whoever initialises it last is the partition's only writer."""
        return f"{self.application_id}-{self.query}-{partition}"


_LOST: Final = {*codes.FENCED, codes.FATAL}
"""Another producer of the partition has started; one that learns it while it produces says only that it is over."""

Produce = Callable[[Producer], None]
"""Produces a partition's records; called again if the transaction has to be."""


class PartitionWriter:
    """Writes batches to one sink partition. Not thread-safe."""

    def __init__(self, target: SinkTarget, partition: int) -> None:
        self._target, self._partition = target, partition
        self._producer: Producer | None = None
        self._marker = 0
        self._group: object = None
        """The marker's group, as a transaction's commit of it wants to have it."""
        self._rpc_timeout_s = min(_RPC_TIMEOUT_S, target.write_timeout_s)

    @property
    def marker(self) -> int:
        """The first batch that isn't committed, as far as this writer knows."""
        return self._marker

    def write(self, batch_id: int, produce: Produce) -> bool:
        """Commit a batch once; False if it had been committed before.

        Raises:
            WriteTimeout: it took longer than the target's `write_timeout_s`; the last error is its cause.
            KafkaException: the brokers refuse for a reason that trying again won't change.

        """
        deadline, pause_s = time.monotonic() + self._target.write_timeout_s, _BACKOFF_S
        while True:
            began = time.monotonic()
            try:
                producer = self._producer or self.initialise()
                if self._marker > batch_id:
                    return False
                self._transact(producer, batch_id, produce)
            except KafkaException as failure:
                error = failure.args[0]
                self.close()
                if not _worth_another_try(error):
                    raise
                if time.monotonic() >= deadline:
                    raise WriteTimeout(
                        f"partition {self._partition} of query {self._target.query} could not be written in "
                        f"{self._target.write_timeout_s:g} s: {error.str()}"
                    ) from failure
                log.info("sink partition initialised again", partition=self._partition, reason=error.name())
                if error.code() in _LOST:
                    # Another attempt of this task may be at work, as with speculative execution. It needs about as
                    # long as this one has taken: who came back sooner would fence it, and be fenced by it in turn.
                    pause_s = max(pause_s, time.monotonic() - began)
                time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
                pause_s = min(pause_s * 2, _BACKOFF_MAX_S)
            else:
                return True

    def initialise(self) -> Producer:
        """Fence earlier producers, then read the marker."""
        target = self._target
        transactional_id = target.transactional_id(self._partition)
        transactional: dict[str, str | int] = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(target.transaction_timeout_s * 1000),
            "linger.ms": 0,  # commit flushes anyway
        }
        producer = clients.producer(target.bootstrap, transactional_id, **transactional)
        producer.init_transactions(self._rpc_timeout_s)
        group: dict[str, str | int] = {"group.id": target.marker_group}
        # Not kept beside the producer: while no broker answers, a consumer costs 2 % of a core, and there may be many.
        markers = clients.consumer(target.bootstrap, transactional_id, **group)
        try:
            self._marker = _offset(markers.committed([self._marker_at()], timeout=self._rpc_timeout_s)[0])
            self._group = markers.consumer_group_metadata()
        finally:
            markers.close()
        self._producer = producer
        return producer

    def close(self) -> None:
        """Forget the producer; what it had open is aborted by the next one, or by the broker in time."""
        self._producer = None

    def _transact(self, producer: Producer, batch_id: int, produce: Produce) -> None:
        producer.begin_transaction()
        try:
            produce(producer)
            marker = self._marker_at(batch_id + 1)
            producer.send_offsets_to_transaction([marker], self._group, self._rpc_timeout_s)
            producer.commit_transaction(self._rpc_timeout_s)
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                _abort(producer)
            raise
        except BaseException:
            _abort(producer)
            self.close()
            raise
        self._marker = batch_id + 1

    def _marker_at(self, offset: int | None = None) -> TopicPartition:
        at = TopicPartition(self._target.marker_topic, self._partition)
        if offset is not None:
            at.offset = offset
        return at


def newest_written(target: SinkTarget) -> int | None:
    """Return the newest batch that any partition's marker names; None before the first.

    Raises:
        KafkaException: the markers can't be read.

    """
    # A transaction that a driver left open must not hold us up: it is aborted when its partition is written again.
    group: dict[str, str | int] = {"group.id": target.marker_group, "isolation.level": "read_uncommitted"}
    consumer = clients.consumer(target.bootstrap, f"{target.application_id}-start", **group)
    at = [TopicPartition(target.marker_topic, partition) for partition in range(target.partition_count)]
    deadline = time.monotonic() + target.write_timeout_s
    try:
        while True:
            try:
                newest = max(_offset(marker) for marker in consumer.committed(at, timeout=_RPC_TIMEOUT_S))
            except KafkaException as failure:
                if not _worth_another_try(failure.args[0]) or time.monotonic() >= deadline:
                    raise
                time.sleep(_BACKOFF_S)
            else:
                return newest - 1 if newest > 0 else None
    finally:
        consumer.close()


def _offset(marker: TopicPartition) -> int:
    """Return a committed marker's offset, 0 if there is none yet."""
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
    headers: list[tuple[str, bytes]] | None = None,
) -> None:
    """Produce one record, waiting for room in the queue where there is none.

    Raises:
        KafkaException: it can't be produced, or there was no room for too long.

    """
    deadline = time.monotonic() + _RPC_TIMEOUT_S
    while True:
        try:
            producer.produce(
                topic, partition=partition, key=key, value=value, timestamp=timestamp, headers=headers or []
            )
        except BufferError:
            if time.monotonic() >= deadline:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None  # noqa: SLF001 - a public constant
            producer.poll(0.05)
        else:
            return


def _worth_another_try(error: KafkaError) -> bool:
    """Whether a fresh producer may succeed: it was fenced or lost its transaction, or the broker isn't ready."""
    lost = {
        *_LOST,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
    unready = {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
    }
    return error.retriable() or error.txn_requires_abort() or error.code() in lost | unready


def _abort(producer: Producer) -> None:
    try:
        producer.abort_transaction(_RPC_TIMEOUT_S)
    except KafkaException as failure:
        log.info("transaction not aborted; the next producer will", error=failure.args[0].str())


class WriterCache:
    """A worker process's writers: initialising costs ten times what a small commit does.

    Those that were not used for long are forgotten at the next use of another. They cost threads, and where no broker
    answers, a core for every eighty.
    """

    def __init__(
        self, limit: int = _WRITERS_MAX, idle_s: float = _IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._idle_s, self._clock = limit, idle_s, clock
        self._lock = threading.Lock()
        self._writers: OrderedDict[tuple[SinkTarget, int], tuple[PartitionWriter, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many writers are kept."""
        return len(self._writers)

    def writer(self, target: SinkTarget, partition: int) -> PartitionWriter:
        """Return the partition's writer, the same as last time if it is still kept."""
        forgotten = []  # destroyed by returning, out of the lock: a producer's end takes a moment
        with self._lock:
            now = self._clock()
            kept = self._writers.pop((target, partition), None)
            writer = PartitionWriter(target, partition) if kept is None else kept[0]
            self._writers[target, partition] = writer, now
            while len(self._writers) > self._limit or now - next(iter(self._writers.values()))[1] > self._idle_s:
                forgotten.append(self._writers.popitem(last=False))
        return writer


WRITERS = WriterCache()
