"""A streaming job that knows nothing of this project: plain PySpark, with a sink of Spark's own.

It counts the records of a topic for each key and adds up their numbers. Run as a program: see `main`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

_STATE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    "default": {},
    "rocksdb": {"spark.sql.streaming.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider"},
}
_PROVIDERS["changelog"] = {
    **_PROVIDERS["rocksdb"],
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def main(bootstrap: str, topic: str, checkpoint: str, provider: str, trigger: str, jars: str, per_batch: str) -> None:
    """Run until the process is killed."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        **_PROVIDERS[provider],
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    records = (
        session.readStream.format("kafka")
        .options(
            **{
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": per_batch,
            }
        )
        .load()
    )
    number = F.col("value").cast("string").cast("long")
    totals = records.groupBy(F.col("key").cast("string").alias("user")).agg(F.count("*").alias("n"), F.sum(number))
    query = (
        totals.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
