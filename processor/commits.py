"""The commits topic: after each batch, and now and then while idle, how far the inputs of each store are processed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from processor.checkpoint import Offsets
from statehouse.control.v1 import commits_pb2
from statehouse.errors import StatehouseError
from statehouse.kafka import clients, codes
from statehouse.kafka.offsets import last_stable_offsets, settled_offsets
from statehouse.topology import commits_topic

log = structlog.get_logger(__name__)

_RPC_TIMEOUT_S: Final = 10.0
_ATTEMPTS_MAX: Final = 5
_PAUSE_S: Final = 0.2

Figures = Callable[[], commits_pb2.QueryFigures | None]
"""Tells how a query does, None as long as it isn't known."""


class Superseded(StatehouseError):
    """Another processor of the same application has started the query; this one must stop."""


@dataclass(frozen=True, slots=True)
class StoreChangelog:
    """A store and where its records go."""

    store: str
    topic: str
    partition_count: int


class CommitsPublisher:
    """Writes the commit records of a query's stores. Thread-safe.

    Its producer is transactional for the fence alone: a driver that was replaced can't put an older batch over a
    newer one. It is initialised once and never again, so being fenced is final.
    """

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        query: str,
        changelogs: Sequence[StoreChangelog],
        figures: Figures = lambda: None,
    ) -> None:
        self._figures = figures
        self._application_id, self._query, self._changelogs = application_id, query, tuple(changelogs)
        self._topic = commits_topic(application_id)
        client_id = f"{application_id}-{query}-commits"
        transactional: dict[str, str | int] = {"transactional.id": client_id, "linger.ms": 0}
        self._producer: Producer = clients.producer(bootstrap, client_id, **transactional)
        self._admin = clients.admin(bootstrap, client_id)
        self._lock = threading.Lock()
        self._last: list[commits_pb2.Commit] = []
        self._last_at = time.monotonic()
        self._superseded: Superseded | None = None
        self._settling: Callable[[float], None] | None = None

    def start(self) -> None:
        """Fence the publisher of an earlier driver.

        Raises:
            KafkaException: the brokers can't be reached, or refuse.

        """
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                self._producer.init_transactions(_RPC_TIMEOUT_S)
            except KafkaException as failure:
                if attempt == _ATTEMPTS_MAX or not failure.args[0].retriable():
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    def publish(self, query_id: str, batch_id: int, source_ends: Offsets, *, idle: bool = False) -> None:
        """Write the records of a committed batch, one a store, with the changelogs' ends as they are now.

        Raises:
            Superseded: a newer driver has fenced this one.
            KafkaException: they could not be written.

        """
        partitions = [(each.topic, partition) for each in self._changelogs for partition in range(each.partition_count)]
        # Of a batch long committed all is stable; what a killed driver left open isn't waited for.
        read_ends = last_stable_offsets if idle else settled_offsets
        ends = read_ends(self._admin, partitions, _RPC_TIMEOUT_S) if partitions else {}
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
                committed_at_ms=None if idle else round(time.time() * 1000),
            )
            for changelog in self._changelogs
        ]
        with self._lock:
            self._write(records)

    def repeat(self, idle_for_s: float) -> bool:
        """Write the last records again, marked idle, if none were written for that long; whether they were."""
        with self._lock:
            if not self._last or time.monotonic() - self._last_at < idle_for_s:
                return False
            self._write_again(stopped=False)
            return True

    def finish(self) -> None:
        """Write the last records again, as those of a processor that ended in an orderly way.

        Raises:
            Superseded: a newer driver has fenced this one.
            KafkaException: they could not be written.

        """
        with self._lock:
            if self._last:
                self._write_again(stopped=True)

    def _write_again(self, *, stopped: bool) -> None:
        figures = self._figures()
        if figures is not None:
            figures.input_rows_per_second = 0
        records = []
        for last in self._last:
            record = commits_pb2.Commit()
            record.CopyFrom(last)
            record.idle, record.stopped = True, stopped
            if figures is not None:
                record.figures.CopyFrom(figures)
            records.append(record)
        self._write(records)

    def _write(self, records: list[commits_pb2.Commit]) -> None:
        if self._superseded is not None:
            raise self._superseded
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                self._settle()  # what an earlier attempt has left
                self._producer.begin_transaction()
                self._settling = self._producer.abort_transaction
                for record in records:
                    self._producer.produce(self._topic, key=record.store.encode(), value=record.SerializeToString())
                self._settling = self._producer.commit_transaction
                self._settle()
            except KafkaException as failure:
                self._recover(failure, attempt)
            else:
                self._last, self._last_at = records, time.monotonic()
                return

    def _recover(self, failure: KafkaException, attempt: int) -> None:
        """Make ready for another attempt, or raise."""
        error: KafkaError = failure.args[0]
        if error.code() in codes.FENCED:
            self._superseded = Superseded(
                f"another processor of {self._application_id} runs query {self._query} now; this one stops. Run one "
                "processor an application."
            )
            raise self._superseded from failure
        if error.txn_requires_abort():
            self._settling = self._producer.abort_transaction
        if attempt == _ATTEMPTS_MAX or not (error.retriable() or error.txn_requires_abort()):
            raise failure
        log.info("commit record not written, trying again", error=error.str())
        time.sleep(_PAUSE_S)

    def _settle(self) -> None:
        """End the transaction that is open, if there is one, in the way that was begun.

        A commit or an abort that was not answered in time goes on, and the client takes no other call until the same
        one has told how it went.
        """
        if self._settling is not None:
            self._settling(_RPC_TIMEOUT_S)
            self._settling = None


def _offsets(offsets: Offsets) -> list[commits_pb2.TopicOffset]:
    return [
        commits_pb2.TopicOffset(topic=topic, partition=partition, offset=offset)
        for (topic, partition), offset in sorted(offsets.items())
    ]


class IdleRepeater:
    """A thread that repeats the last commit record while its query is idle, so that the processor's age is known.

    While a batch runs nothing is repeated: a batch that hangs must show.
    """

    def __init__(
        self,
        publisher: CommitsPublisher,
        is_idle: Callable[[], bool],
        interval_s: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._publisher, self._is_idle, self._interval_s = publisher, is_idle, interval_s
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits-idle", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for a record under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_RPC_TIMEOUT_S)

    def _run(self) -> None:
        # Looks twice an interval, so that a record is at most one and a half intervals after the last.
        while not self._stop.wait(self._interval_s / 2):
            if not self._is_idle():
                continue
            try:
                self._publisher.repeat(self._interval_s)
            except Superseded as error:
                self._on_failure(error)
                return
            except KafkaException as failure:
                log.warning("idle commit record not written; trying on", error=failure.args[0].str())
