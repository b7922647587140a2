"""A streaming job that counts what it makes itself, and keeps as little of its checkpoint as Spark lets it.

    python rate_job.py CHECKPOINT PROVIDER TRIGGER

It runs until its stdin is closed, and ends after the batch under way.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

sys.path.insert(0, str(Path(__file__).parent))
from jobs import PROVIDERS  # type: ignore[import-not-found]


def main(checkpoint: str, provider: str, trigger: str) -> None:
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        **PROVIDERS[provider],
    }
    for name, value in conf.items():
        session.conf.set(name, value)
    numbers = session.readStream.format("rate").option("rowsPerSecond", 100).load()
    counts = numbers.groupBy(F.expr("value % 20").alias("place")).agg(F.count("*"), F.max("timestamp"))
    query = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
