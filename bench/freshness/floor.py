"""Spark alone: a query that copies a topic by Spark's own Kafka source and sink, the floor of what a batch takes."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from bench.freshness.workloads import SINK, SOURCE
from processor.settings import ProcessorSettings
from processor.spark.session import open_session
from statehouse.settings import load


def main() -> None:
    """Copy until SIGTERM. Settings are a processor's, by variables."""
    settings = load(ProcessorSettings, {})
    session = open_session("floor", settings)
    frame = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        # As the processor's sources have it: an empty partition would hold a batch up for half a second.
        .option("kafka.fetch.max.wait.ms", "10")
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
