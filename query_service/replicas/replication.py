"""Replication: threads that read changelogs into stores.

A node has two such threads: one restores, one follows. Each has its own consumer, so that a restoring task never delays
a running one. Work is cut into slices (one batch of messages each); between two slices the event loop can run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from query_service.replicas.replica import LogLost, StoreReplica, monotonic_and_wall_ms
from query_service.replicas.topic_watch import TopicWatch
from query_service.states.faults import Fault
from query_service.stores.base import ChangelogRecord
from statehouse.contract.batch_cuts import batch_in
from statehouse.errors import StatehouseError
from statehouse.kafka import clients, codes
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.kafka.renewed import RenewedAdmin, RenewedConsumer
from statehouse.kafka.topic_changes import FoundState
from statehouse.runtime.background import as_error
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

OnEnd = Callable[[StoreReplica], None]
OnFailure = Callable[[StoreReplica, Exception], None]
OnApplied = Callable[[StoreReplica, int], None]
OnDefect = Callable[[Exception], None]
Key = tuple[str, int]

_POLL_S = 0.05
# If no answer comes in this time, librdkafka finds the leader on its own, a second later.
_METADATA_S = 0.5


class ReplicationEnded(StatehouseError):
    """The thread that should read has ended."""


@dataclass(frozen=True, slots=True)
class _Command:
    """A command that a replicator's thread carries out between two slices."""

    obey: Callable[[RenewedConsumer], None]
    done: Future[None]
    needs_thread: bool

    def execute(self, consumer: RenewedConsumer) -> None:
        try:
            self.obey(consumer)
        except BaseException as caught:  # noqa: BLE001 - the future passes it to the caller
            self.done.set_exception(as_error(caught))
        else:
            self.done.set_result(None)

    def end(self) -> None:
        """Complete the command without the thread, which has ended."""
        if self.needs_thread:
            self.done.set_exception(ReplicationEnded("the thread that reads changelogs has ended"))
        else:
            self.done.set_result(None)


class Replicator:
    """A thread with one consumer that reads changelog partitions into their replicas.

    The callbacks run on the thread. `on_batch(replica, records)` is called for each applied batch; `on_end(replica)`
    at each end of a partition, and also at the last known end, because librdkafka reports an end only when a fetch
    finds nothing, which never happens under steady writes; `on_failure(replica, error)` when a replica can't go on, and
    the thread then stops reading for it; `on_defect(error)` when a defect has ended the thread and failed its replicas.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers | str,
        client_id: str,
        on_batch: OnApplied,
        on_end: OnEnd,
        on_failure: OnFailure,
        on_defect: OnDefect,
        *,
        batch_records: int,
    ) -> None:
        self._brokers, self._client_id = brokers, f"{client_id}-{name}"
        self._on_batch, self._on_end, self._on_failure = on_batch, on_end, on_failure
        self._on_defect = on_defect
        self._batch_records = batch_records
        self._replicas: dict[Key, StoreReplica] = {}
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._ended = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replicator-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the present slice, and wait for its end."""
        self._stop.set()
        self._submit(lambda _consumer: None, needs_thread=False)  # it may wait for its first command
        self._thread.join(timeout=30.0)

    def add(self, replica: StoreReplica) -> Future[None]:
        """Start to read a replica's partition from its position on. The future is done once the thread reads it.

        The future raises:
            ReplicationEnded: the thread has ended.
            StatehouseError: the thread reads the partition for another replica already.

        """

        def command(consumer: RenewedConsumer) -> None:
            if replica.topic_partition in self._replicas:
                raise StatehouseError(f"{replica.topic_partition} is being read for another replica")
            self._get_to_know(replica.topic_partition[0], consumer)
            consumer.client.incremental_assign([TopicPartition(*replica.topic_partition, replica.position)])
            self._replicas[replica.topic_partition] = replica
            consumer.expect()

        return self._submit(command, needs_thread=True)

    def _get_to_know(self, topic: str, consumer: RenewedConsumer) -> None:
        """Ask for the leaders of a topic that is new to this consumer: librdkafka itself asks only once a second."""
        if all(topic != known for known, _partition in self._replicas):
            with suppress(KafkaException):  # then librdkafka asks
                consumer.client.list_topics(topic, timeout=_METADATA_S)

    def remove(self, replica: StoreReplica) -> Future[None]:
        """Stop reading a replica's partition. Once the future is done, the thread no longer uses the replica."""

        def command(consumer: RenewedConsumer) -> None:
            if self._replicas.get(replica.topic_partition) is replica:
                del self._replicas[replica.topic_partition]
                consumer.client.incremental_unassign([TopicPartition(*replica.topic_partition)])

        return self._submit(command, needs_thread=False)

    def _submit(self, obey: Callable[[RenewedConsumer], None], *, needs_thread: bool) -> Future[None]:
        command = _Command(obey, Future(), needs_thread)
        command.done.set_running_or_notify_cancel()  # from now on only the thread completes it, waited for or not
        with self._submit_lock:
            if not self._ended:
                self._commands.put(command)
                return command.done
        command.end()
        return command.done

    def _run(self) -> None:
        try:
            self._replicate()
        except BaseException as caught:
            log.exception("replication stopped by a defect", thread=self._thread.name)
            error = as_error(caught)
            self._end()
            for replica in self._replicas.values():
                self._on_failure(replica, error)
            self._on_defect(error)
        else:
            self._end()

    def _end(self) -> None:
        """Complete the waiting commands, and make later ones complete immediately."""
        with self._submit_lock:
            self._ended = True
        while not self._commands.empty():
            self._commands.get_nowait().end()

    def _replicate(self) -> None:
        first = self._first_to_read()
        if first is None:
            return
        try:
            consumer = RenewedConsumer(lambda: clients.consumer(self._brokers, self._client_id))
        except BaseException:
            first.end()
            raise
        try:
            first.execute(consumer)
            while not self._stop.is_set():
                self._obey(consumer)
                self._give_up_lost(consumer)
                if not self._replicas:
                    self._await_command(consumer)
                    continue
                first = consumer.client.poll(_POLL_S)
                if first is not None:
                    consumer.note(first)
                    self._take([first, *consumer.client.consume(self._batch_records - 1, 0)], consumer)
                if consumer.is_silent and not all(replica.is_at_known_end for replica in self._replicas.values()):
                    self._renew(consumer)
        finally:
            consumer.close()

    def _first_to_read(self) -> _Command | None:
        """Return the first command that needs a consumer, None if the thread is to end.

        Where the data plane reads, there is none: then no client is made, which would take threads and memory.
        """
        while True:
            command = self._commands.get()
            if command.needs_thread and not self._stop.is_set():
                return command
            command.end()
            if self._stop.is_set():
                return None

    def _renew(self, consumer: RenewedConsumer) -> None:
        """Have a new client go on at the replicas' positions."""
        log.warning("no records arrive from logs that have more: making a new client", thread=self._thread.name)
        places = [TopicPartition(*key, each.position) for key, each in self._replicas.items()]
        consumer.renew().incremental_assign(places)

    def _obey(self, consumer: RenewedConsumer) -> None:
        while not self._commands.empty():
            self._commands.get_nowait().execute(consumer)

    def _await_command(self, consumer: RenewedConsumer) -> None:
        consumer.client.poll(0)
        try:
            self._commands.get(timeout=_POLL_S).execute(consumer)
        except queue.Empty:
            return

    def _give_up_lost(self, consumer: RenewedConsumer) -> None:
        """Fail the replicas that other threads marked as lost. Only this thread may drop them."""
        for replica in list(self._replicas.values()):
            if replica.loss is not None:
                self._fail(replica, replica.loss, consumer)

    def _fail(self, replica: StoreReplica, error: Exception, consumer: RenewedConsumer) -> None:
        del self._replicas[replica.topic_partition]
        consumer.client.incremental_unassign([TopicPartition(*replica.topic_partition)])
        self._on_failure(replica, error)

    def _take(self, messages: list[Message], consumer: RenewedConsumer) -> None:
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
                continue  # removed after the consumer had queued the messages
            try:
                slice_.apply_to(replica, self._on_batch)
            except BaseException as caught:  # noqa: BLE001 - one replica's failure must not stop the others
                self._fail(replica, as_error(caught), consumer)
                continue
            if slice_.end is not None or replica.is_at_known_end:
                self._on_end(replica)


class _Slice:
    """The part of one batch of messages that belongs to one partition: records, then perhaps the end or a loss."""

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

    def apply_to(self, replica: StoreReplica, on_batch: OnApplied) -> None:
        """Write the records, then move to the end if there is an end event: no records are in between.

        Raises:
            LogLost: the log no longer has the replica's position.

        """
        if self._messages:
            _apply(replica, self._messages)
            on_batch(replica, len(self._messages))
        if self._lost is not None:
            raise LogLost(self._lost)
        if self.end is not None:
            replica.reach(self.end)


def _apply(replica: StoreReplica, messages: list[Message]) -> None:
    """Write messages. A message that can't be a record of this store is skipped, by every replica, and counted."""
    records = []
    for message in messages:
        key = message.key()
        if key is None:
            replica.note_skipped(message.offset(), "a record without a key")
        else:
            batch = batch_in(message.headers())
            records.append(ChangelogRecord(key, message.value(), message.timestamp()[1], message.offset(), batch))
    for index, reason in replica.apply(records, messages[-1].offset() + 1):
        replica.note_skipped(records[index].offset, reason)


class EndOffsetWatcher:
    """A thread that asks the broker for the ends of all replicas' partitions, in one request per interval.

    After an answer that took longer than the interval it asks again immediately.

    A replica that reaches an end asked for at time t has everything that was committed by t, provided that it is the
    end of the same topic. So the thread asks about the topics afterwards. A replica whose topic was recreated is marked
    as lost. A replica whose topic has changed otherwise refuses lookups, and its staleness grows (`topic_watch`).
    `on_topic_change()` is called on the thread when one begins or ceases to refuse, `on_defect(error)` when a defect
    ends the thread.
    """

    def __init__(
        self,
        brokers: Brokers | str,
        client_id: str,
        interval_s: float,
        replicas: Callable[[], list[StoreReplica]],
        on_defect: OnDefect,
        on_topic_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._topics = TopicWatch(on_topic_change)
        self._brokers, self._client_id = brokers, f"{client_id}-ends"
        self._interval_s, self._replicas, self._on_defect = interval_s, replicas, on_defect
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="end-offsets", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as caught:
            log.exception("the end offset watcher stopped by a defect")
            self._on_defect(as_error(caught))

    def _watch(self) -> None:
        admin = RenewedAdmin(self._brokers, self._client_id)
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            asked_at, wall_ms = monotonic_and_wall_ms()
            self._ask(admin, asked_at, wall_ms)
            # An answer that is late, because this process was frozen or cut off, holds ends of long ago, so the thread
            # asks again immediately. It doesn't do so twice in a row, because a broker may always be slow.
            is_late = monotonic_and_wall_ms()[0] - asked_at > self._interval_s
            pause_s = 0.0 if is_late and pause_s else self._interval_s

    def _ask(self, admin: RenewedAdmin, asked_at: float, wall_ms: int) -> None:
        replicas = self._replicas()
        positions = [replica.position for replica in replicas]
        try:
            ends, topics = admin.ask(partial(_ends_and_topics, replicas, self._topics, asked_at))
        except KafkaException as error:
            log.debug("end offsets can't be read at the moment", error=str(error))
            return
        self._topics.take(replicas, topics, asked_at)
        for replica, position in zip(replicas, positions, strict=True):
            end, found = ends.get(replica.topic_partition), topics.get(replica.spec.changelog_topic)
            if found is not None and found.topic_id != replica.topic_id:
                recreated = f"topic {replica.spec.changelog_topic} was recreated (its id is {found.topic_id} now)"
                replica.lose(LogLost(recreated, Fault.TOPIC_RECREATED))
            elif found is None or end is None or replica.topic_change:
                continue
            elif end < position:
                replica.lose(LogLost(f"position {position} is beyond the end of the log {end}"))
            else:
                replica.note_end(end, asked_at, wall_ms)


def _ends_and_topics(
    replicas: Collection[StoreReplica], watch: TopicWatch, now: float, admin: AdminClient
) -> tuple[Mapping[Key, int], Mapping[str, FoundState]]:
    """Ask for the ends of the replicas' partitions, then about their topics; return both."""
    topics = {replica.spec.changelog_topic for replica in replicas}
    try:
        ends = last_stable_offsets(admin, {replica.topic_partition for replica in replicas}, timeout_s=5.0)
    except KafkaException:
        found = watch.ask(admin, topics, now)
        if found.keys() == topics:
            raise
        return {}, found  # no topic is there any more
    return ends, watch.ask(admin, topics, now)
