"""Spark alone: a query that copies a topic by Spark's own Kafka source and sink, the floor of what a batch takes."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Final

from bench.freshness.workloads import SINK, SOURCE
from processor.settings import ProcessorSettings
from processor.spark.session import open_session
from statehouse.settings import load

_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_SPARKS_OWN: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS: Final = "Spark's own files and sink (at least once, acks=all), a batch after the other"
"""What the floor runs with; partitions, session and source are as in the applications."""


def main() -> None:
    """Copy until SIGTERM. Settings are a processor's, by variables."""
    settings = load(ProcessorSettings, {})
    # The checkpoint's files are written as Spark does it, not by our class, and plans are described as by default.
    conf = {**settings.spark_conf, _FILE_MANAGER: _SPARKS_OWN, "spark.sql.ui.explainMode": "formatted"}
    session = open_session("floor", settings.model_copy(update={"spark_conf": conf}))
    frame = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        # As the processor's sources have it: a batch would wait for half a second.
        .option("kafka.fetch.max.wait.ms", "0")
        .load()
        .select("key", "value")
    )
    query = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("topic", SINK)
        .option("checkpointLocation", f"{settings.checkpoint_dir}/floor")
        .start()
    )

    def end(_signum: int, _frame: FrameType | None) -> None:
        query.stop()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    query.awaitTermination()


if __name__ == "__main__":
    main()
