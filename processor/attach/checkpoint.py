"""Follows the checkpoint of a query that another program runs. It only reads, and holds nothing open."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from processor.checkpoint import CheckpointReader, Offsets
from processor.spark_failures import beginning
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

_FORMATS: Final = {"v1": 1, "v2": 2}
_WAIT_S: Final = 0.5


class AttachedCheckpoint(CheckpointReader):
    """The checkpoint."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        """Look at it.

        Raises:
            ConfigurationError: there is no checkpoint, or the file system or Spark can't read it.

        """
        try:
            super().__init__(session, directory)
            is_there = self.exists()
            is_escaped = self._is_escaped()
        except Py4JError as error:
            raise ConfigurationError(f"checkpoint {directory} can't be read: {beginning(error)}") from error
        if not is_there:
            raise ConfigurationError(
                f"no query has a checkpoint in {directory}: name the directory that the job gives as its "
                "checkpointLocation (it has the file metadata and the folders offsets and commits), and start the job "
                "first"
            )
        if is_escaped:
            raise ConfigurationError(
                f"checkpoint {directory}: Spark's reader of states finds no directory whose path has a space, or "
                "another character that is escaped in URIs: name it by a link without one"
            )

    def _is_escaped(self) -> bool:
        uri = self._path(self.directory).toUri()
        return bool(uri.getRawPath() != uri.getPath())

    def wait_for_a_batch(self, timeout_s: float) -> int:
        """Return the newest committed batch; wait for the first one, because only then state can be read.

        Raises:
            ConfigurationError: there is none in time.

        """
        deadline, is_told = time.monotonic() + timeout_s, False
        while True:
            committed = self.latest_committed()
            if committed is not None:
                return committed
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"the query of checkpoint {self.directory} has committed no batch in {timeout_s:g} s: start the "
                    "job first, or raise source_wait_ms"
                )
            if not is_told:
                is_told = True
                log.info("waiting for the query's first batch", checkpoint=self.directory)
            time.sleep(_WAIT_S)

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

    def committed_at_ms(self, batch_id: int) -> int:
        """Return when a batch was committed, by the file system's clock, but not later than now."""
        status = self._files.getFileStatus(self._path(f"{self.directory}/commits/{batch_id}"))
        return min(int(status.getModificationTime()), round(time.time() * 1000))

    def format_version(self, batch_id: int) -> int:
        """Return the version of the state's files.

        Raises:
            ConfigurationError: a newer Spark wrote the checkpoint.

        """
        version = self._read(f"commits/{batch_id}").partition("\n")[0].strip()
        if version not in _FORMATS:
            raise ConfigurationError(
                f"the checkpoint's commit log has version {version[:20]!r}, known are {', '.join(_FORMATS)}: the job "
                "runs on a newer Spark than the one that reads here"
            )
        return _FORMATS[version]

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the Kafka offsets where a batch ends; of sources that aren't Kafka there are none."""
        try:
            return super().source_ends(batch_id)
        except (ValueError, TypeError):  # another source's offsets, which look alike
            return {}

    def partitions_of(self, batch_id: int) -> int | None:
        """Return the number of partitions that the state has in a batch; None if the batch's entry is gone."""
        if not self._exists(f"offsets/{batch_id}"):
            return None
        settings: Mapping[str, Any] = json.loads(self._read(f"offsets/{batch_id}").splitlines()[1]).get("conf", {})
        found = settings.get("spark.sql.shuffle.partitions")
        return None if found is None else int(found)

    def _is_committed(self, batch_id: int) -> bool:
        return self._exists(f"commits/{batch_id}")

    def _exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(f"{self.directory}/{name}")))
