"""The bounded store as Spark runs it: batches of files, state between them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from processor.operators.workers.lru import lru
from processor.operators.workers.recency import StoreUpdate, bounded
from processor.spark.failures import beginning
from statehouse.contract.partitioning import partition_for

SCHEMA = (
    "key string, value string, timestamp timestamp, topic string, partition int, offset long, reason string, "
    "detail string"
)
PARTITIONS, MAX_ENTRIES = 2, 5
Row = dict[str, Any]

pytestmark = pytest.mark.timeout(240)


def row(key: str, value: str | None, second: int, **more: Any) -> Row:
    return {"key": key, "value": value, "timestamp": f"2001-09-09T01:46:{second:02}Z", **more}


def run(spark: SparkSession, directory: Path, batches: Iterable[list[Row]]) -> list[list[tuple[Any, ...]]]:
    """Run each list as a batch; return what each gave: key, value, reason."""
    source, checkpoint = directory / "source", directory / "checkpoint"
    source.mkdir(parents=True)
    seen: list[list[tuple[Any, ...]]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        seen.append([(bytes(r.key), r.value and bytes(r.value), r.reason) for r in frame.collect()])

    frame = lru(spark.readStream.schema(SCHEMA).json(str(source)), MAX_ENTRIES, PARTITIONS)
    for number, rows in enumerate(batches):
        (source / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
        # A query for each batch, so that state is read again as after a restart.
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).foreachBatch(collect).start()
        assert query.awaitTermination(90)
    return seen


@pytest.mark.long  # at small size test_topology_test.py and test_examples.py displace, too
def test_batches_displace_the_least_recently_updated_whatever_order_their_rows_come_in(
    spark: SparkSession, tmp_path: Path
):
    rng = random.Random(7)
    # Seconds are shared by several updates, of a key too: then the offset tells which is the last.
    batches = [
        [
            row(f"k{rng.randrange(8)}", rng.choice(["9", "10", None]), rng.randrange(3), partition=0, offset=offset)
            for offset in range(start, start + 24)
        ]
        for start in (0, 24)
    ]
    dead = row("k1", "raw", 3, topic="scores", partition=7, offset=41, reason="not_json", detail="why")
    batches[1].append(dead)

    found = run(spark, tmp_path / "once", batches)
    again = run(spark, tmp_path / "again", [rng.sample(batch, len(batch)) for batch in batches])

    assert [sorted(batch, key=str) for batch in found] == [sorted(batch, key=str) for batch in again]
    assert [each for batch in found for each in batch if each[2]] == [(b"k1", b"raw", "not_json")]
    kept: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for batch, published in zip(batches, found, strict=True):
        live = sorted(
            (each for each in batch if "reason" not in each),
            key=lambda each: (each["timestamp"], each["offset"]),
        )
        expected = []
        for partition in range(PARTITIONS):
            updates = [
                StoreUpdate(each["key"].encode(), each["value"] and each["value"].encode(), 0)
                for each in live
                if partition_for(each["key"].encode(), PARTITIONS) == partition
            ]
            publish, kept[partition] = bounded(kept[partition], updates, MAX_ENTRIES)
            expected += [(update.key, update.value, None) for update in publish]
        assert sorted((each for each in published if each[2] is None), key=str) == sorted(expected, key=str)
    assert all(len(keys) <= MAX_ENTRIES for keys in kept)


def test_a_batch_that_nothing_orders_ends_the_query_with_a_reason(spark: SparkSession, tmp_path: Path):
    with pytest.raises(StreamingQueryException) as failure:
        run(spark, tmp_path, [[row("k1", "9", 1), row("k1", "10", 1)]])
    assert "key b'k1' has two updates in one batch" in beginning(failure.value)
