"""Streaming jobs that know nothing of this project. Run as a program: all that are named, one after the other.

    python jobs.py EVENTS CHECKPOINTS PROVIDER JOB...

EVENTS is a directory of Parquet files; each file is a batch. For each line on stdin each job reads what is new, and
ends, as if cron had started it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

try:
    from pyspark.sql.streaming import StatefulProcessor
except ImportError:  # Spark 3.5 has none
    StatefulProcessor = object

EVENTS = (
    "user string, raw binary, at timestamp, amount decimal(6,2), big decimal(30,10), n bigint, d double, "
    "place struct<city: string, zip: int>, tag binary"
)
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider"
    },
}
PROVIDERS["changelog"] = {
    **PROVIDERS["rocksdb"],
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def visits(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((seen, f"{key[0]} was here"))
    yield pd.DataFrame({"user": [key[0]], "seen": [seen]})


class Profile(StatefulProcessor):  # type: ignore[misc] # Spark's has no types
    """A value, a map, a list, and a value that expires."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n bigint, last timestamp")
        self._cities = handle.getMapState("cities", "city string", "visits bigint")
        self._numbers = handle.getListState("numbers", "n bigint")
        self._recent = handle.getValueState("recent", "n bigint", ttlDurationMs=86_400_000)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002 - Spark's names
        total, last = self._total.get() if self._total.exists() else (0, pd.Timestamp(0))
        for frame in rows:
            for n, at, place in zip(frame["n"], frame["at"], frame["place"], strict=True):
                total, last = total + int(n) % 1000, max(last, at)
                city = (place["city"],)
                before = self._cities.getValue(city)[0] if self._cities.containsKey(city) else 0
                self._cities.updateValue(city, (before + 1,))
                self._numbers.appendValue((int(n) % 1000,))
        self._total.update((total, last))
        self._recent.update((total,))
        yield pd.DataFrame({"user": [key[0]], "n": [total]})

    def close(self) -> None:
        pass


def pairs(events: DataFrame, how: str) -> DataFrame:
    left = events.select("user", "n", "at", "amount").withWatermark("at", "2 hours").alias("l")
    right = events.select(F.col("user").alias("who"), F.col("n").alias("m"), F.col("at").alias("then"))
    right = right.where("m % 2 = 0").withWatermark("then", "2 hours").alias("r")
    return left.join(right, F.expr("user = who AND n = m AND then BETWEEN at AND at + INTERVAL 1 MINUTE"), how)


def late(events: DataFrame) -> DataFrame:
    return events.withWatermark("at", "1 minute")


JOBS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "two_columns": lambda e: e.groupBy("user", "at").agg(F.count("*").alias("hits"), F.sum("n")),
    "latin": lambda e: e.groupBy(F.col("raw").cast("string").alias("name"), F.expr("n % 3").alias("kind")).count(),
    "sums": lambda e: e.groupBy("user").agg(
        F.sum("amount").alias("total"),
        F.avg("amount").alias("mean"),
        F.sum("big").alias("bigs"),
        F.avg("big").alias("big_mean"),
        F.min("at").alias("since"),
        F.max("at").alias("until"),
        F.max("n").alias("top"),
        F.count("*").alias("hits"),
        F.stddev("d").alias("spread"),
        F.avg("d").alias("d_mean"),
        F.first("n").alias("first"),
        F.last("n", ignorenulls=True).alias("last"),
        F.max_by("d", "n").alias("of_top"),
    ),
    "means": lambda e: e.groupBy("user").agg(F.avg("d"), F.sum("big"), F.first("n"), F.count("*")),
    "key_types": lambda e: e.groupBy("amount", "tag").count(),
    "structs": lambda e: e.groupBy("place").agg(F.max(F.struct("n", "place", "at")).alias("newest")),
    "window_update": lambda e: late(e).groupBy(F.window("at", "1 minute"), "user").agg(F.count("*")),
    "window_append": lambda e: late(e).groupBy(F.window("at", "1 minute").alias("w"), "user").agg(F.count("*")),
    "sessions": lambda e: (
        late(e)
        .groupBy("user", F.session_window("at", F.expr("CASE WHEN n % 2 = 0 THEN '5 seconds' ELSE '20 seconds' END")))
        .agg(F.count("*"))
    ),
    "dedup": lambda e: e.dropDuplicates(["user", "tag"]),
    "dedup_watermark": lambda e: late(e).dropDuplicatesWithinWatermark(["user", "at"]),
    "join": lambda e: pairs(e, "inner"),
    "join_left": lambda e: pairs(e, "left_outer"),
    "pandas": lambda e: (
        e.where("user IS NOT NULL")
        .groupBy("user")
        .applyInPandasWithState(
            visits, "user string, seen long", "seen long, note string", "update", GroupStateTimeout.NoTimeout
        )
    ),
    "tws": lambda e: (
        e.where("user IS NOT NULL")
        .groupBy("user")
        .transformWithStateInPandas(Profile(), "user string, n bigint", "Update", "ProcessingTime")
    ),
    "two_operators": lambda e: (
        late(e)
        .groupBy(F.window("at", "1 minute"), "user")
        .agg(F.count("*").alias("hits"))
        .groupBy(F.window("window", "30 minutes"))
        .agg(F.sum("hits"))
    ),
    "foreach_batch": lambda e: e.groupBy("n").agg(F.max("d")),
    "parts200": lambda e: e.groupBy("n").agg(F.count("*"), F.max("at")),
}
APPEND = {"window_append", "sessions", "dedup", "dedup_watermark", "join", "join_left", "two_operators"}


def main() -> None:
    events, checkpoints, provider, *names = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .getOrCreate()
    )
    for setting, value in PROVIDERS[provider].items():
        session.conf.set(setting, value)
    for line in sys.stdin:
        run(session, events, checkpoints, names)
        sys.stdout.write(line)
        sys.stdout.flush()


def run(session: SparkSession, events: str, checkpoints: str, names: list[str]) -> None:
    for name in names:
        session.conf.set("spark.sql.shuffle.partitions", 200 if name == "parts200" else 2)
        # What expires by the clock has Spark make one batch after the other for ever.
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(name != "tws").lower())
        stream = session.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(events)
        writer = JOBS[name](stream).writeStream.outputMode("append" if name in APPEND else "update")
        if name == "foreach_batch":
            writer = writer.foreachBatch(lambda frame, _: frame.write.format("noop").mode("append").save())
        elif name == "window_append":
            writer = writer.format("parquet").option("path", f"{checkpoints}/{name}-out")
        else:
            writer = writer.format("noop")
        query = writer.option("checkpointLocation", f"{checkpoints}/{name}").trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    main()
