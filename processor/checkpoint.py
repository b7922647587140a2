"""What Spark's checkpoint says about a query: its id, its batches, and the offsets each of them reads up to.

Read through Hadoop's file system API, so that it works wherever Spark can keep a checkpoint. The files' form is
Spark's own (OffsetSeqLog): a version line, a line of metadata, then a line for each source; `v1` is what Spark 4.2
writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from statehouse.errors import ConfigurationError

Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a query's checkpoint says."""

    query_id: str
    committed: int | None
    """The newest batch that Spark has committed; None before the first."""
    planned: Mapping[int, Offsets]
    """The batches of the offset log from the committed one on, and the source offsets each reads up to."""


def parse_offsets(text: str) -> Offsets:
    """Return (topic, partition) -> next offset of an entry of the offset log.

    A source that has no offset yet ("-") and sources other than Kafka are left out.

    Raises:
        ConfigurationError: the entry is of another version than this Spark writes.

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
        """Whether the query was ever started: Spark writes its id before its first batch."""
        return bool(self._files.exists(self._path(f"{self.directory}/metadata")))

    def query_id(self) -> str:
        """Return Spark's id of the query; written before its first batch."""
        return str(json.loads(self._read("metadata"))["id"])

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the offsets a batch reads up to; they are logged before it runs."""
        return parse_offsets(self._read(f"offsets/{batch_id}"))

    def latest_committed(self) -> int | None:
        """Return the newest batch Spark has committed, None before the first."""
        return max(self._batches("commits"), default=None)

    def state(self) -> CheckpointState | None:
        """Return all that the checkpoint says; None if the query was never started."""
        if not self.exists():
            return None
        committed = self.latest_committed()
        planned = [batch_id for batch_id in self._batches("offsets") if committed is None or batch_id >= committed]
        return CheckpointState(
            self.query_id(), committed, {batch_id: self.source_ends(batch_id) for batch_id in planned}
        )

    def _batches(self, log: str) -> list[int]:
        directory = self._path(f"{self.directory}/{log}")
        if not self._files.exists(directory):
            return []
        names = [entry.getPath().getName() for entry in self._files.listStatus(directory)]
        return [int(name) for name in names if name.isdigit()]

    def _read(self, name: str) -> str:
        stream = self._files.open(self._path(f"{self.directory}/{name}"))
        try:
            return str(self._to_string(stream, "UTF-8"))
        finally:
            stream.close()
