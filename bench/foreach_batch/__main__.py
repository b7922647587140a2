"""Keeps each key's latest value of a topic in Redis, by Spark's `foreachBatch`: `python -m bench.foreach_batch`.

Spark's session, its settings and what it reads are as in our applications, so the sink alone differs.
"""

from __future__ import annotations

import argparse
from functools import partial

from pyspark.sql import DataFrame

from bench.foreach_batch import CHECKPOINT
from bench.foreach_batch.rows import write_rows
from bench.foreach_batch.running import run_until_sigterm
from processor.settings import ProcessorSettings
from processor.spark.kafka_options import topic_options
from processor.spark.session import open_session
from statehouse.settings import load


def write(port: int, batch: DataFrame, _number: int) -> None:
    """Write a batch: each executor its partitions, in the order in which Kafka has the records."""
    batch.foreachPartition(partial(write_rows, port))


def main() -> None:
    """Run until SIGTERM, or with `--once` until the topic's end. Spark's settings are a processor's, by variables."""
    parser = argparse.ArgumentParser(prog="python -m bench.foreach_batch", description=__doc__)
    parser.add_argument("--source", required=True, help="the topic")
    parser.add_argument("--port", type=int, required=True, help="Redis' port")
    parser.add_argument("--once", action="store_true", help="end when all is written")
    options = parser.parse_args()
    settings = load(ProcessorSettings, {})
    session = open_session("foreach-batch", settings)
    source = topic_options(settings.brokers, options.source) | {"maxOffsetsPerTrigger": str(settings.max_offsets)}
    frame = session.readStream.format("kafka").options(**source).load().select("key", "value")
    writer = (
        frame.writeStream.foreachBatch(partial(write, options.port))
        .option("checkpointLocation", f"{settings.checkpoint_dir}/{CHECKPOINT}")
        .trigger(**({"availableNow": True} if options.once else {"processingTime": "0 seconds"}))
    )
    run_until_sigterm(writer)


if __name__ == "__main__":
    main()
