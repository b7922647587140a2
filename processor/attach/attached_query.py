"""Follows a query: reads each newly committed batch's state, and hands it to the sink.

To supervision this looks like one of Spark's own queries: it is active, fails, and is started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.checkpoint import AttachedCheckpoint, BatchRemoved
from processor.attach.columns.timed_keys import EntryKind, apart
from processor.attach.failed_entries import FailedEntries
from processor.attach.operators import StateChoice
from processor.attach.reader import StateReader, changelog_entries
from processor.attach.reads import Identity, Position, Read, ReadChanges, ReadPlanner, ReadState
from processor.rows import KEY, TIMESTAMP
from processor.sink.batch import described
from processor.sink.protocol import ForeignClaim, SinkTarget
from processor.spark.failures import beginning
from processor.spark.task_classes import task_object
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

_LOOK_S: Final = 2.0
_TELL_S: Final = 5.0
_STOP_S: Final = 20.0
_TRIES: Final = 20
_DRIVER_FAILURES: Final = (PySparkException, Py4JError)


@dataclass(slots=True)
class AttachedStore:
    """What is known of the store while it follows, through all restarts.

    Attributes:
        identity: what the store shows.
        published: the last batch that all of its partitions have; None if none is known.

    """

    identity: Identity
    published: int | None


class AttachedQuery:
    """A thread that publishes batch after batch."""

    def __init__(
        self,
        checkpoint: AttachedCheckpoint,
        reader: StateReader,
        planner: ReadPlanner,
        store: AttachedStore,
        target: SinkTarget,
        sink: Callable[[DataFrame, int], None],
        *,
        choice: StateChoice,
        shape: EntryKind,
        poll_interval_s: float,
    ) -> None:
        """Prepare; `start()` starts it."""
        self._session = session = checkpoint.session
        self._checkpoint, self._reader, self._planner = checkpoint, reader, planner
        self._store, self._target, self._sink = store, target, sink
        self._choice, self._shape, self._poll_interval_s = choice, shape, poll_interval_s
        self._failed = FailedEntries(session, target.query)
        self._gone = self._behind = 0
        self._group = f"attach-{target.query}"
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._looked_at = 0.0
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)

    def start(self) -> AttachedQuery:
        """Start."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether it runs."""
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        """Return what it has ended with."""
        return self._failure

    def stop(self) -> None:
        """Stop; a read under way is given up."""
        self._stop.set()
        if self._thread.is_alive():
            self._session.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        self._session.sparkContext.setJobGroup(self._group, "attach", interruptOnCancel=True)
        try:
            while not self._stop.is_set():
                read = self._next()
                if read is None:
                    self._stop.wait(self._poll_interval_s)
                else:
                    self._try(read)
        except BaseException as failure:  # noqa: BLE001 - supervision asks for it
            if not self._stop.is_set():
                self._failure = failure

    def _next(self) -> Read | None:
        now, published = time.monotonic(), self._store.published
        is_due = now - self._looked_at >= _LOOK_S
        if published is not None and not is_due and not self._checkpoint.has_next(published):
            return None
        committed = self._checkpoint.newest_after(published)
        if published is not None and (committed is None or committed < published):
            self._refuse_replaced()
            self._behind += 1
            if self._behind < _TRIES:
                return None  # a listing, while the job removes entries, may lack some
            raise ConfigurationError(
                f"checkpoint {self._checkpoint.directory} is at batch {committed} now, the store has {published}: "
                "it was rolled back. Start again with --accept-lost-checkpoint to bring the store to what that has"
            )
        self._behind = 0
        if is_due:
            self._looked_at = now
            self._refuse_replaced()
        same = (
            committed is None
            or published is None
            or committed <= published
            or self._same_partitions(published, committed)
        )
        return self._planner.next(Position(committed, published, self._reader.has_changes, same))

    def _try(self, read: Read) -> None:
        """Carry out a read; if the job has removed what it needs, and has gone on, the next look begins anew."""
        began = time.monotonic()
        try:
            read, frame = self._whole(read)
            self._gone = 0
        except (BatchRemoved, *_DRIVER_FAILURES) as failure:
            if self._stop.is_set() or not self._is_past(read):
                raise
            self._gone += 1
            if self._gone >= _TRIES:
                raise ConfigurationError(self._checkpoint.too_fast()) from failure
            log.info("the job has removed the batch meanwhile; reading a newer one", batch_id=read.batch_id)
            return
        log.debug("state read", batch_id=read.batch_id, read_ms=round((time.monotonic() - began) * 1000))
        self._publish(read, frame)

    def _is_past(self, read: Read) -> bool:
        newest = self._checkpoint.latest_committed()
        return newest is not None and newest > read.batch_id

    def _same_partitions(self, before: int, now: int) -> bool:
        found = self._checkpoint.partitions_of(before)
        return found is not None and found == self._checkpoint.partitions_of(now)

    def _refuse_replaced(self) -> None:
        identity, found = self._store.identity, self._checkpoint.exists() and self._checkpoint.query_id()
        if found != identity.query_id:
            state = f"the checkpoint of another query ({found})" if found else "no checkpoint any more"
            raise ConfigurationError(
                f"{self._checkpoint.directory} has {state}; the store shows query {identity.query_id}. Start again "
                "with --accept-lost-checkpoint to bring the store to what the new query has, or give it another store"
            )

    def _whole(self, read: Read) -> tuple[Read, DataFrame]:
        """Return what was read, which is the whole state where changes can't be, and its rows."""
        # All that is needed of the checkpoint, before the job can remove it.
        self._checkpoint.batch(read.batch_id)
        try:
            frame = self._read(read)
        except _DRIVER_FAILURES as failure:
            if not isinstance(read, ReadChanges) or self._stop.is_set() or self._is_past(read):
                raise
            log.info("changes can't be read; reading the whole state", batch_id=read.last, reason=_reason(failure))
            read = self._planner.failed(read)
            frame = self._read(read)
        try:
            self._reader.refuse_clash(read.batch_id)
        except BaseException:
            frame.unpersist()
            raise
        return read, frame

    def _publish(self, read: Read, frame: DataFrame) -> None:
        try:
            self._refuse_replaced()
            rows = self._failed.as_dead_letters(frame, repeats=isinstance(read, ReadState))
            others = [name for name in rows.columns if name != KEY]
            self._sink(rows.select(*apart(self._shape), *others), read.batch_id)
        except ForeignClaim as failure:
            # Another follower has: an older one that was given up, but lives. Whether it will write is unknown.
            log.warning("reading the whole state", batch_id=read.batch_id, reason=str(failure))
            self._store.published = None
            return
        finally:
            frame.unpersist()
        self._store.published = read.batch_id
        self._planner.done(read)

    def _read(self, read: Read) -> DataFrame:
        """Return the rows to publish, read to the end: only then is it known that all of them could be read."""
        if isinstance(read, ReadState):
            claim(self._session, self._target, read.batch_id)
            topic = self._target.outputs[0].topic
            before = changelog_entries(self._session, self._target.brokers, topic)
            frame = self._reader.state(read.batch_id, before)
        else:
            choice = self._choice
            changed = self._checkpoint.changed_partitions(choice.operator_id, choice.state_store, read.first, read.last)
            frame = self._reader.changes(read.first, read.last, changed)
        committed_at = F.timestamp_millis(F.lit(self._checkpoint.batch(read.batch_id).committed_at_ms))
        # Left on disk what memory has no room for.
        frame = frame.withColumn(TIMESTAMP, committed_at).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with self._telling(read):
                self._failed.count(frame)
        except BaseException:
            frame.unpersist()
            raise
        return frame

    @contextmanager
    def _telling(self, read: Read) -> Iterator[None]:
        """Say how far the read is, if it takes long."""
        done = threading.Event()
        tracker = self._session.sparkContext.statusTracker()

        def tell() -> None:
            began = time.monotonic()
            while not done.wait(_TELL_S):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                log.info(
                    "reading the state",
                    batch_id=read.batch_id,
                    whole=isinstance(read, ReadState),
                    tasks_done=sum(stage.numCompletedTasks for stage in stages if stage),
                    tasks=sum(stage.numTasks for stage in stages if stage),
                    seconds=round(time.monotonic() - began),
                )

        thread = threading.Thread(target=tell, name="attach-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def claim(session: SparkSession, target: SinkTarget, batch_id: int) -> None:
    """Mark all partitions so that nobody else writes a batch before this one to them any more.

    A follower that was given up, but lives, may be about to write. An older batch must not change the changelog while
    it is compared. The same batch by another follower has the same content.
    """
    task_object(session, "statehouse.sink.Sink").claim(described(target), batch_id)


def _reason(failure: BaseException) -> str:
    """Return what Spark says of a state that it can't read; the first line of a failed call only names the call."""
    found = [line.strip() for line in str(failure).splitlines() if "[" in line and "SQLSTATE" in line]
    return (found[0] if found else beginning(failure))[:300]
