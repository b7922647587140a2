"""Replication: threads that read changelogs into stores.

A node has two: one restores, one follows, each with a consumer of its own, so that a restoring task never
delays a running one. Work is cut into slices (one batch of messages), between which the event loop gets
its turn.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from query_service.faults import Fault
from query_service.replica import LogLost, StoreReplica, monotonic_and_wall_ms
from query_service.stores.base import Record
from statehouse.errors import StatehouseError
from statehouse.kafka import clients, codes
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.kafka.topics import topic_ids

log = structlog.get_logger(__name__)

OnEnd = Callable[[StoreReplica], None]
OnFailure = Callable[[StoreReplica, Exception], None]
OnBatch = Callable[[StoreReplica, int], None]
OnDefect = Callable[[Exception], None]
Key = tuple[str, int]

_POLL_S = 0.05
# Without an answer by then librdkafka finds the leader by itself, a second later.
_METADATA_S = 0.5


class ReplicationEnded(StatehouseError):
    """The thread that is to read has ended."""


@dataclass(frozen=True, slots=True)
class _Command:
    """What a replicator's thread is to do between two slices."""

    obey: Callable[[Consumer], None]
    done: Future[None]
    needs_thread: bool

    def execute(self, consumer: Consumer) -> None:
        try:
            self.obey(consumer)
        except Exception as error:  # noqa: BLE001 - whoever gave the command learns of it
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def end(self) -> None:
        """Complete it without a thread: nothing is read any more."""
        if self.needs_thread:
            self.done.set_exception(ReplicationEnded("the thread that reads changelogs has ended"))
        else:
            self.done.set_result(None)


class Replicator:
    """A thread with one consumer that applies the changelog partitions it is given.

    Callbacks run on the thread: `on_batch(replica, records)` for each batch applied, `on_end(replica)` at each
    partition end, and at an end that was asked for: librdkafka tells of an end only when a fetch finds nothing, which
    under steady writes never happens. `on_failure(replica, error)` when a replica can't go on; it is then no longer
    read. `on_defect(error)` when the thread ends by a defect; its replicas have failed by then.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        client_id: str,
        on_batch: OnBatch,
        on_end: OnEnd,
        on_failure: OnFailure,
        on_defect: OnDefect,
        *,
        batch_records: int,
    ) -> None:
        self._bootstrap, self._client_id = bootstrap, f"{client_id}-{name}"
        self._on_batch, self._on_end, self._on_failure = on_batch, on_end, on_failure
        self._on_defect = on_defect
        self._batch_records = batch_records
        self._replicas: dict[Key, StoreReplica] = {}
        self._heard_at = time.monotonic()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._ended = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replicator-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the slice under way."""
        self._stop.set()
        self._thread.join(timeout=30.0)

    def add(self, replica: StoreReplica) -> Future[None]:
        """Read a replica's partition from its position on.

        The future raises:
            ReplicationEnded: the thread has ended.
            StatehouseError: the partition is being read for another replica.

        """

        def command(consumer: Consumer) -> None:
            if replica.topic_partition in self._replicas:
                raise StatehouseError(f"{replica.topic_partition} is being read for another replica")
            self._get_to_know(replica.topic_partition[0], consumer)
            consumer.incremental_assign([TopicPartition(*replica.topic_partition, replica.position)])
            self._replicas[replica.topic_partition] = replica
            self._heard_at = time.monotonic()

        return self._submit(command, needs_thread=True)

    def _get_to_know(self, topic: str, consumer: Consumer) -> None:
        """Ask who leads a topic that is new here: librdkafka itself would look for that only once a second."""
        if all(topic != known for known, _partition in self._replicas):
            with suppress(KafkaException):  # then it looks
                consumer.list_topics(topic, timeout=_METADATA_S)

    def remove(self, replica: StoreReplica) -> Future[None]:
        """Stop reading a replica's partition; once the future is done the thread touches the replica no more."""

        def command(consumer: Consumer) -> None:
            if self._replicas.get(replica.topic_partition) is replica:
                del self._replicas[replica.topic_partition]
                consumer.incremental_unassign([TopicPartition(*replica.topic_partition)])

        return self._submit(command, needs_thread=False)

    def _submit(self, obey: Callable[[Consumer], None], *, needs_thread: bool) -> Future[None]:
        command = _Command(obey, Future(), needs_thread)
        with self._submit_lock:
            if not self._ended:
                self._commands.put(command)
                return command.done
        command.end()
        return command.done

    def _run(self) -> None:
        try:
            self._replicate()
        except Exception as error:
            log.exception("replication stopped by a defect", thread=self._thread.name)
            self._end()
            for replica in self._replicas.values():
                self._on_failure(replica, error)
            self._on_defect(error)
        else:
            self._end()

    def _end(self) -> None:
        """Complete the commands that wait, and have later ones not wait."""
        with self._submit_lock:
            self._ended = True
        while not self._commands.empty():
            self._commands.get_nowait().end()

    def _replicate(self) -> None:
        consumer = clients.consumer(self._bootstrap, self._client_id)
        try:
            while not self._stop.is_set():
                self._obey(consumer)
                self._give_up_lost(consumer)
                if not self._replicas:
                    self._await_command(consumer)
                    continue
                first = consumer.poll(_POLL_S)
                if first is not None:
                    if not codes.is_complaint(first):
                        self._heard_at = time.monotonic()
                    self._take([first, *consumer.consume(self._batch_records - 1, 0)], consumer)
                if self._misses_something():
                    consumer.close()
                    consumer = self._renewed()
        finally:
            consumer.close()

    def _misses_something(self) -> bool:
        """Whether nothing has come for long, though a log is known to go on: `clients` tells how that can be."""
        return time.monotonic() - self._heard_at > clients.SILENCE_S and not all(
            replica.is_at_known_end for replica in self._replicas.values()
        )

    def _renewed(self) -> Consumer:
        """Return another consumer that goes on where each replica is."""
        log.warning("nothing comes of logs that go on: the client is made anew", thread=self._thread.name)
        consumer = clients.consumer(self._bootstrap, self._client_id)
        consumer.incremental_assign([TopicPartition(*key, each.position) for key, each in self._replicas.items()])
        self._heard_at = time.monotonic()
        return consumer

    def _obey(self, consumer: Consumer) -> None:
        while not self._commands.empty():
            self._commands.get_nowait().execute(consumer)

    def _await_command(self, consumer: Consumer) -> None:
        consumer.poll(0)
        try:
            self._commands.get(timeout=_POLL_S).execute(consumer)
        except queue.Empty:
            return

    def _give_up_lost(self, consumer: Consumer) -> None:
        """Fail the replicas that others found to be beyond mending: only this thread may let go of them."""
        for replica in list(self._replicas.values()):
            if replica.lost is not None:
                self._fail(replica, replica.lost, consumer)

    def _fail(self, replica: StoreReplica, error: Exception, consumer: Consumer) -> None:
        del self._replicas[replica.topic_partition]
        consumer.incremental_unassign([TopicPartition(*replica.topic_partition)])
        self._on_failure(replica, error)

    def _take(self, messages: list[Message], consumer: Consumer) -> None:
        """Apply a slice, partition by partition."""
        slices: dict[Key, _Slice] = {}
        for message in messages:
            key = (message.topic(), message.partition())
            if (slice_ := slices.get(key)) is None:
                slice_ = slices[key] = _Slice()
            slice_.add(message)
        for key, slice_ in slices.items():
            replica = self._replicas.get(key)
            if replica is None:
                continue  # removed since the consumer queued it
            try:
                slice_.apply_to(replica, self._on_batch)
            except Exception as error:  # noqa: BLE001 - one replica's failure must not stop the others
                self._fail(replica, error, consumer)
                continue
            if slice_.end is not None or replica.is_at_known_end:
                self._on_end(replica)


class _Slice:
    """What one batch of messages holds for one partition: records, then perhaps the end or a loss."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._lost: str | None = None
        self.end: int | None = None

    def add(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._messages.append(message)
        elif error.code() == codes.PARTITION_EOF:
            self.end = message.offset()
        elif error.code() == codes.AUTO_OFFSET_RESET:
            self._lost = error.str()
        else:
            log.warning("changelog can't be read at the moment", topic=message.topic(), error=error.str())

    def apply_to(self, replica: StoreReplica, on_batch: OnBatch) -> None:
        """Write the records, then move over what the end event says holds none.

        Raises:
            LogLost: the log no longer has the position.

        """
        if self._messages:
            _apply(replica, self._messages)
            on_batch(replica, len(self._messages))
        if self._lost is not None:
            raise LogLost(self._lost)
        if self.end is not None:
            replica.reach(self.end)


def _apply(replica: StoreReplica, messages: list[Message]) -> None:
    """Write messages; what can't be a record of this store is passed over, as every replica does, and counted."""
    records = []
    for message in messages:
        key = message.key()
        if key is None:
            replica.note_skipped(message.offset(), "a record without a key")
        else:
            records.append(Record(key, message.value(), message.timestamp()[1], message.offset()))
    for index, reason in replica.apply(records, messages[-1].offset() + 1):
        replica.note_skipped(records[index].offset, reason)


class EndOffsetWatcher:
    """A thread that asks the broker for the ends of all replicas' partitions, in one request an interval.

    Being at an end that was asked for at time t proves that the replica holds all that was committed by t, provided
    that it is the end of the same topic: the topics' ids are asked for afterwards. A replica whose topic was
    recreated is marked as lost; one whose topic is missing serves on and gets stale. `on_defect(error)` is called on
    the thread when it ends by a defect.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        interval_s: float,
        replicas: Callable[[], list[StoreReplica]],
        on_defect: OnDefect,
    ) -> None:
        self._bootstrap, self._client_id = bootstrap, f"{client_id}-ends"
        self._interval_s, self._replicas, self._on_defect = interval_s, replicas, on_defect
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="end-offsets", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            log.exception("the watch of end offsets stopped by a defect")
            self._on_defect(error)

    def _watch(self) -> None:
        admin = clients.RenewedAdmin(self._bootstrap, self._client_id)
        while not self._stop.wait(self._interval_s):
            replicas = self._replicas()
            positions = [replica.position for replica in replicas]
            asked_at, wall_ms = monotonic_and_wall_ms()
            try:
                ends, ids = admin.ask(partial(_ends_and_topic_ids, replicas))
            except KafkaException as error:
                log.debug("end offsets can't be read at the moment", error=str(error))
                continue
            for replica, position in zip(replicas, positions, strict=True):
                end, found = ends.get(replica.topic_partition), ids.get(replica.spec.changelog_topic)
                if found is not None and found != replica.topic_id:
                    replica.lost = LogLost(
                        f"topic {replica.spec.changelog_topic} was recreated (its id is {found} now)",
                        Fault.TOPIC_RECREATED,
                    )
                elif found is None or end is None:
                    continue
                elif end < position:
                    replica.lost = LogLost(f"position {position} is beyond the end of the log {end}")
                else:
                    replica.note_end(end, asked_at, wall_ms)


def _ends_and_topic_ids(
    replicas: Collection[StoreReplica], admin: AdminClient
) -> tuple[Mapping[Key, int], Mapping[str, str]]:
    """Ask for the ends of the replicas' partitions, and then for the ids of their topics."""
    ends = last_stable_offsets(admin, {replica.topic_partition for replica in replicas}, timeout_s=5.0)
    return ends, topic_ids(admin, {replica.spec.changelog_topic for replica in replicas}, timeout_s=5.0)
