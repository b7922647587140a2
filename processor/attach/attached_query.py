"""Follows a query: reads each newly committed batch's state, and hands it to the sink.

To supervision this looks like one of Spark's own queries: it is active, fails, and is started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.checkpoint import AttachedCheckpoint
from processor.attach.reader import CLASHES, StateReader, changelog_entries
from processor.attach.reads import Identity, Position, Read, ReadChanges, ReadPlanner, ReadState
from processor.rows import KEY, TIMESTAMP, VALUE
from processor.sink.protocol import ForeignClaim, PartitionWriter, SinkTarget
from processor.spark_failures import beginning
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

_LOOK_S: Final = 2.0
_TELL_S: Final = 5.0
_STOP_S: Final = 20.0
_CLAIMERS: Final = 8
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
        session: SparkSession,
        checkpoint: AttachedCheckpoint,
        reader: StateReader,
        planner: ReadPlanner,
        store: AttachedStore,
        target: SinkTarget,
        sink: Callable[[DataFrame, int], None],
        *,
        has_changes: bool,
        poll_interval_s: float,
    ) -> None:
        """Prepare; `start()` starts it."""
        self._session, self._checkpoint, self._reader, self._planner = session, checkpoint, reader, planner
        self._store, self._target, self._sink = store, target, sink
        self._has_changes, self._poll_interval_s = has_changes, poll_interval_s
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
                read = self._planner.next(self._position())
                if read is None:
                    self._stop.wait(self._poll_interval_s)
                else:
                    self._carry_out(read)
        except BaseException as failure:  # noqa: BLE001 - supervision asks for it
            if not self._stop.is_set():
                self._failure = failure

    def _position(self) -> Position:
        published = self._store.published
        committed = self._checkpoint.newest_after(published)
        if published is not None and (committed is None or committed < published):
            self._refuse_replaced()
            raise ConfigurationError(
                f"checkpoint {self._checkpoint.directory} is at batch {committed} now, the store has {published}: "
                "it was rolled back. Start again with --accept-lost-checkpoint to bring the store to what that has"
            )
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._refuse_replaced()
        same = (
            committed is None
            or published is None
            or committed <= published
            or self._same_partitions(published, committed)
        )
        return Position(committed, published, self._has_changes, same)

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

    def _carry_out(self, read: Read) -> None:
        self._reader.read_format(self._checkpoint.format_version(read.batch_id))
        began = time.monotonic()
        try:
            frame = self._read(read)
        except _DRIVER_FAILURES as failure:
            if not isinstance(read, ReadChanges) or self._stop.is_set():
                raise
            log.info("changes can't be read; reading the whole state", batch_id=read.last, reason=_reason(failure))
            read = self._planner.failed(read)
            frame = self._read(read)
        try:
            self._refuse_replaced()
            if self._reader.may_clash and frame.where(CLASHES).head(1):
                raise ConfigurationError(
                    f"store {self._target.query}: different keys of the state have become the same key: let --key name "
                    "all that tells them apart, or leave it out"
                )
            log.debug("state read", batch_id=read.batch_id, read_ms=round((time.monotonic() - began) * 1000))
            self._sink(frame.drop(CLASHES), read.batch_id)
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
            with ThreadPoolExecutor(_CLAIMERS) as pool:
                list(pool.map(partial(claim, self._target, read.batch_id), range(self._target.partition_count)))
            topic = self._target.outputs[0].topic
            before = changelog_entries(self._session, self._target.brokers, topic)
            frame = self._reader.state(read.batch_id, before)
        else:
            frame = self._reader.changes(read.first, read.last)
        committed_at = F.timestamp_millis(F.lit(self._checkpoint.committed_at_ms(read.batch_id)))
        # Left on disk what memory has no room for.
        frame = frame.select(KEY, VALUE, committed_at.alias(TIMESTAMP), CLASHES).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with self._telling(read):
                frame.count()
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


def claim(target: SinkTarget, batch_id: int, partition: int) -> None:
    """Mark a partition so that nobody else writes a batch before this one to it any more.

    A follower that was given up, but lives, may be about to write. What is compared with the changelog must not change
    under the comparison by an older batch. The same batch by another follower has the same content.
    """
    PartitionWriter(target, partition).claim(batch_id)


def _reason(failure: BaseException) -> str:
    """Return what Spark says of a state that it can't read; the first line of a failed call only names the call."""
    found = [line.strip() for line in str(failure).splitlines() if "[" in line and "SQLSTATE" in line]
    return (found[0] if found else beginning(failure))[:300]
