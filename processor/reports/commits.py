"""Writes the commits topic: how far each store's inputs are processed, after each batch and repeatedly while idle.

Each record says what the sources had beyond that when it was written. Spark's own figure is older: it is of the moment
when a batch began, and known only after the batch's record is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from confluent_kafka import KafkaException, Producer

from processor.spark.checkpoint import Offsets
from statehouse.contract.formats import COMMIT
from statehouse.contract.processor_reports import input_backlog
from statehouse.contract.topology import commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.errors import StatehouseError
from statehouse.kafka.authors import RecordSigning
from statehouse.kafka.offsets import end_offsets, last_stable_offsets, settled_offsets
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, Tries, meaning_of
from statehouse.runtime.background import as_error
from statehouse.runtime.backoff import Backoff, BackoffPolicy, OnPause
from statehouse.runtime.brokers import Brokers
from statehouse.runtime.clocks import process_clock

log = structlog.get_logger(__name__)

_RPC_TIMEOUT_S: Final = 10.0
# A record whose input backlog is unknown is better than a late one.
_BACKLOG_TIMEOUT_S: Final = 2.0
_TRIES_MAX: Final = 5
_TRIES: Final = BackoffPolicy("commit_record", first_s=0.2, longest_s=0.2)

Figures = Callable[[], commits_pb2.QueryFigures | None]
"""Returns the figures of a query; None while they aren't known."""
Compared = Callable[[str], commits_pb2.TopicComparison | None]
"""Returns the settings of a topic, wanted and found; None while they aren't known."""


class Superseded(StatehouseError):
    """Another processor of the same application has started the query; this one must stop."""


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """Why a query dies: its restarts without progress, the reason (`failures.where_raised`), whether it's given up."""

    restarts: int
    reason: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class StoreChangelog:
    """A store and its changelog."""

    store: str
    topic: str
    partition_count: int


class CommitsPublisher:
    """Writes the commit records of a query's stores. Thread-safe.

    Its producer is transactional only for fencing: a replaced driver can't overwrite a newer batch with an older one.
    The producer is initialized once, so a fenced publisher stays fenced.
    """

    def __init__(
        self,
        brokers: Brokers | str,
        application_id: str,
        query: str,
        changelogs: Sequence[StoreChangelog],
        figures: Figures = lambda: None,
        on_pause: OnPause = lambda _cause: None,
        compared: Compared = lambda _topic: None,
        traceparent: Callable[[], str] = lambda: "",
        added: Collection[str] = (),
        heartbeat_interval_ms: int = 0,
    ) -> None:
        """Make the producer; `on_pause` hears of each pause before another try to write.

        `traceparent()` returns the one of the batch that is written, empty if it has no span. `added`: stores into
        which no batch has been committed, though the query has committed some. `heartbeat_interval_ms`: how often a
        record will be written at the least; 0: that isn't promised.
        """
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._figures, self._compared, self._on_pause = figures, compared, on_pause
        self.traceparent = traceparent
        self._added = frozenset(added)
        self._application_id, self._query, self._changelogs = application_id, query, tuple(changelogs)
        self._topic = commits_topic(application_id)
        client_id = f"{application_id}-{query}-commits"
        self._producer = TransactionalProducer(brokers, client_id, _RPC_TIMEOUT_S, **{"linger.ms": 0})
        self._admin = RenewedAdmin(brokers, client_id)
        self._signing = RecordSigning(brokers)
        self._lock = threading.Lock()
        self._last: list[commits_pb2.Commit] = []
        self._ends: dict[tuple[str, int], int] | None = None
        """Of each partition the end behind the last batch; None if it has to be asked for."""
        self._last_at = time.monotonic()
        self._last_age_ms = 0
        self._said: QueryFailure | None = None
        self._clock = process_clock()
        self._superseded: Superseded | None = None

    def start(self) -> None:
        """Fence the publisher of an earlier driver.

        Raises:
            KafkaException: the brokers can't be reached, or refuse the request.

        """
        tries = self._tries()
        while True:
            try:
                self._producer.initialise()
            except KafkaException as failure:
                if meaning_of(failure) is not FailureMeaning.AGAIN or not tries.may_go_on:
                    raise
                tries.pause()
            else:
                return

    def publish(
        self,
        query_id: str,
        batch_id: int,
        source_ends: Offsets,
        *,
        idle: bool = False,
        committed_at_ms: int | None = None,
        changelog_ends: Offsets | None = None,
        traceparent: str = "",
    ) -> None:
        """Write the records of a committed batch, one per store.

        `changelog_ends`: of partitions that the batch has written, the ends behind it; the others are where they were.
        Without them the present ends count. `committed_at_ms` is when the batch was committed, if that was before now:
        the reports count from then.

        Raises:
            Superseded: a newer driver has fenced this one.
            KafkaException: they could not be written.

        """
        # What dates a batch of another program is a wall clock, too.
        age_ms = 0 if committed_at_ms is None else max(0, round(time.time() * 1000) - committed_at_ms)
        ends, are_behind = self._ends_behind(changelog_ends, idle=idle)
        backlog = self._input_backlog(source_ends)
        records = [
            commits_pb2.Commit(
                store=changelog.store,
                query_id=query_id,
                batch_id=batch_id,
                source_ends=_offsets(source_ends),
                changelog_ends=_offsets({at: end for at, end in ends.items() if at[0] == changelog.topic}),
                idle=idle,
                query=self._query,
                figures=self._figures(),
                committed_at_ms=None if idle else self._clock.now_ms() - age_ms,
                input_backlog=backlog,
                changelog=self._compared(changelog.topic),
                traceparent=traceparent,
                format_version=COMMIT.written,
                no_batch=idle and changelog.store in self._added,
            )
            for changelog in self._changelogs
        ]
        for record in records:
            record.is_moment = are_behind and not record.no_batch
        with self._lock:
            self._write(records, age_ms)
            self._added = self._added if idle else frozenset()

    @property
    def knows_ends(self) -> bool:
        """Whether the ends behind a batch need not be asked for, if its transactions' own are known."""
        return self._ends is not None

    def _ends_behind(self, written: Offsets | None, *, idle: bool) -> tuple[Offsets, bool]:
        """Return the end of each partition of the changelogs behind a batch, and whether surely none is before it."""
        if written is not None and self._ends is not None:
            self._ends |= {at: end for at, end in written.items() if at in self._ends}
            return self._ends, True
        partitions = [(each.topic, partition) for each in self._changelogs for partition in range(each.partition_count)]
        if not partitions:
            return {}, True
        if not idle:
            ends = self._admin.ask(lambda client: settled_offsets(client, partitions, _RPC_TIMEOUT_S))
            self._ends = dict(ends) if len(ends) == len(partitions) else None
            return ends, self._ends is not None
        self._ends = None
        # Don't wait for a transaction that a killed driver left open. While one is, it may be an old batch's, too: the
        # coordinator answers a commit before the partitions get their markers (KIP-98).
        present = self._admin.ask(lambda client: end_offsets(client, partitions, _RPC_TIMEOUT_S))
        stable = self._admin.ask(lambda client: last_stable_offsets(client, partitions, _RPC_TIMEOUT_S))
        return stable, all(at in present and stable.get(at, -1) >= present[at] for at in partitions)

    @property
    def is_before_first_batch(self) -> bool:
        """Whether no batch of the query is known to have been committed, by this process or an earlier one."""
        return not self._last or _says_nothing_to_read(self._last[0])

    def publish_nothing_to_read(self, query_id: str, idle_for_s: float) -> bool:
        """Write that the sources had nothing to read, and no batch was begun; return whether it wrote.

        Not if a record was written in the last `idle_for_s` seconds, or a batch was committed meanwhile.

        Raises:
            Superseded, KafkaException: as `publish`.

        """
        with self._lock:
            is_early = bool(self._last) and time.monotonic() - self._last_at < idle_for_s
            if is_early or not self.is_before_first_batch or not self._changelogs:
                return False
            records = [
                commits_pb2.Commit(
                    store=changelog.store,
                    query_id=query_id,
                    idle=True,
                    query=self._query,
                    input_backlog=0,
                    no_batch=True,
                    format_version=COMMIT.written,
                )
                for changelog in self._changelogs
            ]
            self._write(records)
            return True

    def forget(self) -> None:
        """Write that nothing is known of the stores: their content is about to be replaced.

        Raises:
            Superseded: a newer driver has fenced this one.
            KafkaException: it could not be written.

        """
        with self._lock:
            self._write_values([(each.store, None) for each in self._changelogs])
            self._last = []

    def repeat(self, idle_for_s: float, *, only_without_backlog: bool = False) -> bool:
        """Write the last records again, marked idle, if none were written for that long; return whether it wrote.

        `only_without_backlog`: not unless the sources are known to have nothing beyond the last records.
        """
        last = self._last
        if self.is_before_first_batch or time.monotonic() - self._last_at < idle_for_s:
            return False
        backlog = self._input_backlog(offsets_of(last[0].source_ends))
        if only_without_backlog and backlog != 0:
            return False
        with self._lock:
            if self._last is not last:  # a batch's records were written meanwhile
                return False
            self._write_again(backlog, stopped=False)
            return True

    def say_busy(self, silent_for_s: float, failure: QueryFailure | None) -> None:
        """Write the last records again, as of then: the processor lives, and its query runs a batch or fails.

        Not if a record was written in the last `silent_for_s` seconds, unless the failure is another one. Before the
        first record there is only a failure to tell.

        Raises:
            Superseded, KafkaException: as `publish`.

        """
        with self._lock:
            is_early = time.monotonic() - self._last_at < silent_for_s
            if (is_early and failure == self._said) or (failure is None and not self._last):
                return
            records = self._last or [
                commits_pb2.Commit(
                    store=each.store, query=self._query, idle=True, no_batch=True, format_version=COMMIT.written
                )
                for each in self._changelogs
            ]
            for record in records:
                record.idle = record.busy = True  # it tells of no batch that its readers don't know
                if record.HasField("figures") and failure is not None:
                    record.figures.input_rows_per_second = 0
            self._write(records, self._age_ms, failure)

    def finish(self, failure: QueryFailure | None = None) -> None:
        """Write the last records again, marked as the last ones of a processor that stopped normally.

        `failure`: why the query is given up, or was being started again; None if it ran.

        Raises:
            Superseded: a newer driver has fenced this one.
            KafkaException: they could not be written.

        """
        if self.is_before_first_batch:
            self.finish_silently(failure)
            return
        with self._lock:
            backlog = self._input_backlog(offsets_of(self._last[0].source_ends))
            self._write_again(backlog, stopped=True, failure=failure)

    def finish_silently(self, failure: QueryFailure | None = None) -> None:
        """Do the same, but as of the last report: this end says nothing of the sources.

        Raises:
            Superseded, KafkaException: as `finish`.

        """
        with self._lock:
            for record in self._last:
                record.stopped = True
            if self._last:
                self._write(self._last, self._age_ms, failure)

    @property
    def _age_ms(self) -> int:
        """How old what the last records say is by now."""
        return self._last_age_ms + round((time.monotonic() - self._last_at) * 1000) if self._last else 0

    def _input_backlog(self, source_ends: Offsets) -> int | None:
        """Return the offsets that the sources have beyond these; None if the brokers don't say."""
        if not source_ends or not self._changelogs:
            return None
        try:
            ends = self._admin.ask(lambda client: last_stable_offsets(client, [*source_ends], _BACKLOG_TIMEOUT_S))
        except KafkaException as failure:
            log.debug("the input backlog can't be read at the moment", error=failure.args[0].str())
            return None
        return input_backlog(source_ends, ends)

    def _write_again(self, backlog: int | None, *, stopped: bool, failure: QueryFailure | None = None) -> None:
        figures = self._figures()
        if figures is not None:
            figures.input_rows_per_second = 0
        records = []
        for last, changelog in zip(self._last, self._changelogs, strict=True):
            record = commits_pb2.Commit()
            record.CopyFrom(last)
            record.idle, record.stopped, record.busy = True, stopped, False
            record.ClearField("input_backlog")
            if backlog is not None:
                record.input_backlog = backlog
            if figures is not None:
                record.figures.CopyFrom(figures)
            if (compared := self._compared(changelog.topic)) is not None:
                record.changelog.CopyFrom(compared)
            records.append(record)
        self._write(records, failure=failure)

    def _write(self, records: list[commits_pb2.Commit], age_ms: int = 0, failure: QueryFailure | None = None) -> None:
        """Write records of what was so `age_ms` ago."""
        for record in records:
            record.age_ms, record.heartbeat_interval_ms = age_ms, self._heartbeat_interval_ms
            record.ClearField("failure")
            if failure is not None:
                record.failure.restarts, record.failure.reason = failure.restarts, failure.reason
                record.failure.given_up = failure.given_up
        at_ms = self._clock.now_ms() - age_ms
        self._write_values([(record.store, record.SerializeToString()) for record in records], at_ms)
        self._last, self._last_at, self._last_age_ms = records, time.monotonic(), age_ms
        self._said = failure

    def _write_values(self, values: list[tuple[str, bytes | None]], at_ms: int = 0) -> None:
        if self._superseded is not None:
            raise self._superseded

        def produce(client: Producer) -> None:
            for store, value in values:
                signed = self._signing.options(self._topic, store.encode(), value)
                client.produce(self._topic, key=store.encode(), value=value, partition=0, timestamp=at_ms, **signed)

        tries = self._tries()
        while True:
            try:
                self._producer.write(produce)
            except KafkaException as failure:
                meaning = meaning_of(failure)
                if meaning is FailureMeaning.FENCED:
                    self._superseded = Superseded(
                        f"another processor of {self._application_id} runs query {self._query} now; this one stops. "
                        "Run one processor an application."
                    )
                    raise self._superseded from failure
                if meaning not in {FailureMeaning.LOST, FailureMeaning.AGAIN} or not tries.may_go_on:
                    raise
                log.info("commit record not written, trying again", error=failure.args[0].str())
                tries.pause()
            else:
                return

    def _tries(self) -> Tries:
        return Tries(Backoff(_TRIES, self._on_pause), most=_TRIES_MAX)


def _offsets(offsets: Offsets) -> list[commits_pb2.TopicOffset]:
    return [
        commits_pb2.TopicOffset(topic=topic, partition=partition, offset=offset)
        for (topic, partition), offset in sorted(offsets.items())
    ]


def offsets_of(offsets: Iterable[commits_pb2.TopicOffset]) -> Offsets:
    """Return the offsets that a commit record names."""
    return {(each.topic, each.partition): each.offset for each in offsets}


def _says_nothing_to_read(record: commits_pb2.Commit) -> bool:
    """Whether a record is one of a query that has had no batch: such a one names no sources' ends."""
    return record.no_batch and not record.source_ends


class Reported(Protocol):
    """A query, as its reports show it; read on their thread."""

    @property
    def is_idle(self) -> bool:
        """Whether it is alive and writes no batch."""
        ...

    @property
    def failure(self) -> QueryFailure | None:
        """Why it fails; None if it doesn't."""
        ...

    def recovered(self, failure: QueryFailure) -> None:
        """Forget this failure, unless another one came after it: nothing is left to process."""
        ...


class Heartbeats:
    """A thread that repeats the last commit records, to show that the processor is alive and how its query does.

    While the query is idle, they say how much its sources hold. While it runs a batch or fails, they say that, and
    prove nothing newer, so that a hanging batch is visible. Before the first batch there is nothing to repeat. Then
    they say that there is nothing to read, if `waiting()` returns the id of the query as that is so, and why it fails.
    """

    def __init__(
        self,
        publisher: CommitsPublisher,
        query: Reported,
        interval_s: float,
        on_failure: Callable[[Exception], None],
        waiting: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._waiting = waiting
        self._publisher, self._query, self._interval_s = publisher, query, interval_s
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits-heartbeats", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits for a write in progress."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_RPC_TIMEOUT_S)

    def _run(self) -> None:
        # Checks twice per interval, so that a record comes at most one and a half intervals after the last.
        while not self._stop.wait(self._interval_s / 2):
            try:
                self._report()
            except KafkaException as failure:
                log.warning("heartbeat of a query not written, trying again", error=failure.args[0].str())
            except BaseException as caught:  # noqa: BLE001 - without this thread a processor that is idle would look dead
                self._on_failure(as_error(caught))
                return

    def _report(self) -> None:
        failure = self._query.failure
        if not self._query.is_idle:
            self._publisher.say_busy(self._interval_s, failure)
        elif failure is not None:
            self._report_restarted(failure)
        elif not self._publisher.is_before_first_batch:
            if not self._publisher.repeat(self._interval_s):
                self._publisher.say_busy(self._interval_s, None)
        elif (query_id := self._waiting()) is not None:
            self._publisher.publish_nothing_to_read(query_id, self._interval_s)

    def _report_restarted(self, failure: QueryFailure) -> None:
        """Report a query that has died and runs again: it has recovered once nothing is left of what made it die."""
        if self._publisher.repeat(self._interval_s, only_without_backlog=True):
            self._query.recovered(failure)
        else:
            self._publisher.say_busy(self._interval_s, failure)
