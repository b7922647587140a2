"""Reads Spark's checkpoint of a query: the query's id, its batches, and the source offsets where each batch ends.

It reads through Hadoop's file system API, so it works wherever Spark can keep a checkpoint. The format of the files is
Spark's (OffsetSeqLog): a version line, a line of metadata, then a line for each source. Spark 4.2 writes `v1`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from processor.spark.failures import beginning
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

Offsets = dict[tuple[str, int], int]
_GLOB_SIGNS: Final = re.compile(r"[\\{}\[\]*?]")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The content of a query's checkpoint."""

    query_id: str
    committed: int | None
    """The newest batch that Spark has committed; None before the first one."""
    planned: Mapping[int, Offsets]
    """Batches in the offset log that `may_be_recorded` -> the source offsets where each ends."""


def may_be_recorded(batch_id: int, committed: int | None) -> bool:
    """Whether a batch may be the last one in the commits topic, or a later one, if Spark has committed that one.

    The record of the committed batch may be under way: then the one before is the last.
    """
    return committed is None or batch_id >= committed - 1


def parse_offsets(text: str) -> Offsets:
    """Return (topic, partition) -> next offset, from one entry of the offset log.

    Sources without an offset yet ("-"), and sources other than Kafka, are left out.

    Raises:
        ConfigurationError: the entry has another version than this Spark writes.

    """
    version, _, body = text.partition("\n")
    if version.strip() != "v1":
        raise ConfigurationError(
            f"the checkpoint's offset log has version {version[:20]!r}, only v1 is known: use the Spark version the "
            "project pins"
        )
    ends: Offsets = {}
    for line in body.splitlines()[1:]:
        try:
            topics = json.loads(line)
        except ValueError:
            continue
        if not isinstance(topics, dict):
            continue
        for topic, partitions in topics.items():
            if isinstance(partitions, dict):
                ends |= {(topic, int(partition)): int(offset) for partition, offset in partitions.items()}
    return ends


class CheckpointReader:
    """Reads a query's checkpoint directory."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        self.directory = directory.rstrip("/")
        jvm: Any = session._jvm  # noqa: SLF001 - the gateway to the JVM has no public name
        self._path = jvm.org.apache.hadoop.fs.Path
        self._to_string = jvm.org.apache.commons.io.IOUtils.toString
        configuration = session._jsc.hadoopConfiguration()  # noqa: SLF001 - same
        self._files = self._path(self.directory).getFileSystem(configuration)

    def exists(self) -> bool:
        """Whether the query was ever started: Spark writes the query's id before the first batch."""
        return bool(self._files.exists(self._path(f"{self.directory}/metadata")))

    def query_id(self) -> str:
        """Return Spark's id of the query; Spark writes it before the first batch."""
        return str(json.loads(self._read("metadata"))["id"])

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the source offsets where a batch ends; Spark logs them before the batch runs."""
        return parse_offsets(self._read(f"offsets/{batch_id}"))

    def latest_committed(self) -> int | None:
        """Return the newest batch that Spark has committed; None before the first one."""
        return max(self._batches("commits"), default=None)

    def state(self) -> CheckpointState | None:
        """Return the content of the checkpoint; None if the query was never started."""
        if not self.exists():
            return None
        committed = self.latest_committed()
        planned = [batch_id for batch_id in self._batches("offsets") if may_be_recorded(batch_id, committed)]
        return CheckpointState(
            self.query_id(), committed, {batch_id: self.source_ends(batch_id) for batch_id in planned}
        )

    def _batches(self, log: str) -> list[int]:
        directory = self._path(f"{self.directory}/{log}")
        if not self._files.exists(directory):
            return []
        names = [entry.getPath().getName() for entry in self._files.listStatus(directory)]
        return [int(name) for name in names if name.isdigit()]

    def texts(self, pattern: str) -> Iterator[str]:
        """Yield the text of each file below the directory whose path matches a pattern of Hadoop's (`state/*`)."""
        for found in self._files.globStatus(self._path(f"{self._quoted()}/{pattern}")) or ():
            yield self._text(found.getPath())

    def _quoted(self) -> str:
        """Return the directory as it stands in a pattern."""
        return _GLOB_SIGNS.sub(r"\\\g<0>", self.directory)

    def note(self, name: str) -> str | None:
        """Return a note of ours; None if there is none, or if it can't be read, which is logged."""
        try:
            return next(self.texts(name), None)
        except Py4JError as error:
            log.warning("a note beside the checkpoint can't be read", note=name, error=beginning(error))
            return None

    def write_note(self, name: str, text: str) -> None:
        """Write a note in ASCII; its name begins with an underscore, which no query's does. A failure is logged."""
        try:
            stream = self._files.create(self._path(f"{self.directory}/{name}"), True)
            try:
                stream.writeBytes(text)
            finally:
                stream.close()
        except Py4JError as error:
            log.warning("a note beside the checkpoint can't be written", note=name, error=beginning(error))

    def _read(self, name: str) -> str:
        return self._text(self._path(f"{self.directory}/{name}"))

    def _text(self, path: Any) -> str:  # noqa: ANN401 - a path of the JVM
        stream = self._files.open(path)
        try:
            return str(self._to_string(stream, "UTF-8"))
        finally:
            stream.close()
