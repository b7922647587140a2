"""Follows the checkpoint of a query that another program runs. It only reads, and holds nothing open."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from processor.attach.changed_partitions import BATCHES_MAX, CODEC, changed_partitions, listed_files
from processor.attach.operators import DEFAULT_STORE
from processor.spark.checkpoint import CheckpointReader, Offsets, parse_offsets
from processor.spark.failures import beginning
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

_FORMATS: Final = {"v1": 1, "v2": 2}
_WAIT_S: Final = 0.5
_TOLD_EVERY_S: Final = 30.0
_KEPT: Final = 64
_TRIES: Final = 20
_CODEC: Final = "spark.sql.streaming.stateStore.compression.codec"
_FAILURES: Final = (Py4JError, PySparkException)

_Result = TypeVar("_Result")


class BatchRemoved(Exception):
    """A batch is asked for that the job's Spark has cleaned up meanwhile."""


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """What the checkpoint says of a batch that is committed.

    Attributes:
        batch_id: its id.
        committed_at_ms: when it was committed, by the file system's clock, but not later than now.
        version: of the state's files.
        source_ends: the Kafka offsets where it ends; of sources that aren't Kafka there are none.
        partitions: of the state; None if that isn't said.
        codec: how the state's files are compressed; None if that isn't said.

    """

    batch_id: int
    committed_at_ms: int
    version: int
    source_ends: Offsets
    partitions: int | None
    codec: str | None


class AttachedCheckpoint(CheckpointReader):
    """The checkpoint."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        """Look at it.

        Raises:
            ConfigurationError: the file system or Spark can't read it.

        """
        self.session = session
        self._known: OrderedDict[int, CheckpointBatch] = OrderedDict()
        jvm: Any = session._jvm  # noqa: SLF001 - the gateway to the JVM has no public name
        self._array_text = jvm.scala.runtime.ScalaRunTime.stringOf
        try:
            super().__init__(session, directory)
            uri = self._path(self.directory).toUri()
            is_escaped = uri.getRawPath() != uri.getPath()
            # Looks are many: to ask the operating system takes a hundredth of what it takes by the JVM.
            qualified = self._files.makeQualified(self._path(self.directory)).toUri()
            self._local = Path(qualified.getPath()) if qualified.getScheme() == "file" else None
        except Py4JError as error:
            raise ConfigurationError(f"checkpoint {directory} can't be read: {beginning(error)}") from error
        if is_escaped:
            raise ConfigurationError(
                f"checkpoint {directory}: Spark's reader of states finds no directory whose path has a space, or "
                "another character that is escaped in URIs: name it by a link without one"
            )

    def wait_for_a_batch(self, timeout_s: float) -> int:
        """Return the newest committed batch; wait for the checkpoint and its first batch: only then there is state.

        Raises:
            ConfigurationError: there is none in time; or its state doesn't say what it has, as before Spark 4.

        """
        deadline, told_at = time.monotonic() + timeout_s, float("-inf")
        while True:
            is_there = self._asked(self.exists)
            committed = self._asked(self.latest_committed) if is_there else None
            if committed is not None:
                self._asked(self._refuse_state_without_names)
                return committed
            now = time.monotonic()
            if now >= deadline and not is_there:
                raise ConfigurationError(
                    f"no query has a checkpoint in {self.directory}: name the directory that the job gives as its "
                    "checkpointLocation (it has the file metadata and the folders offsets and commits), and start the "
                    f"job first, or raise source_wait_ms; waited {timeout_s:g} s"
                )
            if now >= deadline:
                raise ConfigurationError(
                    f"the query of checkpoint {self.directory} has committed no batch in {timeout_s:g} s: start the "
                    "job first, or raise source_wait_ms"
                )
            if now - told_at >= _TOLD_EVERY_S:
                told_at = now
                what = "its first batch" if is_there else "a query to have its checkpoint there"
                at_most_s = round(deadline - now)
                log.info("waiting for the job", checkpoint=self.directory, lacks=what, at_most_s=at_most_s)
            time.sleep(_WAIT_S)

    def _refuse_state_without_names(self) -> None:
        if self._exists("state") and not self._exists("state/0/_metadata"):
            raise ConfigurationError(
                f"the state in {self.directory} was written by Spark 3, which doesn't say what it has: run the job for "
                "a batch with Spark 4, which goes on from this checkpoint and adds that"
            )

    def _asked(self, question: Callable[[], _Result]) -> _Result:
        try:
            return question()
        except Py4JError as error:
            raise ConfigurationError(f"checkpoint {self.directory} can't be read: {beginning(error)}") from error

    def of_newest(self, read: Callable[[int], _Result]) -> _Result:
        """Return what `read` makes of the newest batch; where it is cleaned up meanwhile, of the next newest.

        Raises:
            ConfigurationError: the job cleans up faster than anything can be read.

        """
        for _ in range(_TRIES):
            committed = self.latest_committed()
            if committed is None:
                continue  # between the removal of one entry and the next one
            try:
                return read(committed)
            except (BatchRemoved, *_FAILURES):
                if committed == self.latest_committed():
                    raise
        raise ConfigurationError(self.too_fast())

    def too_fast(self) -> str:
        """Return what to do if the job removes what it has written before that can be read."""
        return (
            f"checkpoint {self.directory}: the job removes the files of its batches before they can be read, "
            f"{_TRIES} times: raise its spark.sql.streaming.minBatchesToRetain, or its trigger's interval"
        )

    def newest_after(self, batch_id: int | None) -> int | None:
        """Return the newest committed batch, cheaply if none or few came since `batch_id`; None if there is none.

        Batches are committed one after the other, so that a few questions find the last; Spark removes old ones.
        """
        if batch_id is None or not self._is_committed(batch_id):
            return self.latest_committed()
        step = 1
        while self._is_committed(batch_id + step):
            batch_id, step = batch_id + step, step * 2
        while step > 1:
            step //= 2
            if self._is_committed(batch_id + step):
                batch_id += step
        return batch_id

    def batch(self, batch_id: int) -> CheckpointBatch:
        """Return what the checkpoint says of a committed batch. It keeps what it read of the last ones.

        Raises:
            BatchRemoved: it isn't there any more.
            ConfigurationError: a newer Spark wrote the checkpoint.

        """
        found = self._known.get(batch_id)
        if found is None:
            try:
                found = self._known[batch_id] = self._batch(batch_id)
            except Py4JError:
                if self._exists(f"commits/{batch_id}") and self._exists(f"offsets/{batch_id}"):
                    raise
                raise BatchRemoved(str(batch_id)) from None
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found

    def _batch(self, batch_id: int) -> CheckpointBatch:
        status = self._files.getFileStatus(self._path(f"{self.directory}/commits/{batch_id}"))
        version = self._read(f"commits/{batch_id}").partition("\n")[0].strip()
        if version not in _FORMATS:
            raise ConfigurationError(
                f"the checkpoint's commit log has version {version[:20]!r}, known are {', '.join(_FORMATS)}: the job "
                "runs on a newer Spark than the one that reads here"
            )
        planned = self._read(f"offsets/{batch_id}")
        try:
            ends = parse_offsets(planned)
        except (ValueError, TypeError):  # another source's offsets, which look alike
            ends = {}
        settings: Mapping[str, Any] = json.loads(planned.splitlines()[1]).get("conf", {})
        partitions = settings.get("spark.sql.shuffle.partitions")
        at_ms = min(int(status.getModificationTime()), round(time.time() * 1000))
        return CheckpointBatch(
            batch_id,
            at_ms,
            _FORMATS[version],
            ends,
            None if partitions is None else int(partitions),
            settings.get(_CODEC),
        )

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the Kafka offsets where a committed batch ends; of sources that aren't Kafka there are none."""
        return self.batch(batch_id).source_ends

    def partitions_of(self, batch_id: int) -> int | None:
        """Return the number of partitions that the state has in a batch; None if the batch's entry is gone."""
        try:
            return self.batch(batch_id).partitions
        except BatchRemoved:
            return None

    def changed_partitions(self, operator: int, store: str, first: int, last: int) -> Collection[int] | None:
        """Return the partitions of a state that batches may have changed, both included; None: any may have."""
        batch = self.batch(last)
        count = last - first + 1
        if batch.partitions is None or batch.codec != CODEC or batch.version != 1 or count > BATCHES_MAX:
            return None
        folder = f"/state/{operator}/"
        inner = "" if store == DEFAULT_STORE else f"{store}/"
        # Spark counts the states: the one after batch 0 is 1.
        names = ",".join(str(number + 1) for number in range(first, last + 1))
        pattern = f"{self._quoted()}{folder}*/{inner}{{{names}}}.{{delta,changelog}}"
        found = self._files.globStatus(self._path(pattern))
        files = listed_files(str(self._array_text(found)), folder) if found is not None else []
        return changed_partitions(files, first + 1, last + 1, batch.partitions)

    def has_next(self, batch_id: int) -> bool:
        """Whether the batch after this one is committed: the one question of a look that finds nothing."""
        return self._is_committed(batch_id + 1)

    def _is_committed(self, batch_id: int) -> bool:
        return self._exists(f"commits/{batch_id}")

    def _exists(self, name: str) -> bool:
        if self._local is not None:
            return (self._local / name).exists()
        return bool(self._files.exists(self._path(f"{self.directory}/{name}")))
