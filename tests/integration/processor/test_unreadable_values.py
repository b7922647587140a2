"""What a store's serde couldn't read is refused where it is written: other keys, and the query, go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Reduce
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.testing import Record, TopologyTest

pytestmark = pytest.mark.timeout(240)
BEGAN_MS = 1_700_000_000_000
AMOUNTS = {"ann": 1e308, "bob": 1.5, "cid": 1e308}


def total(state: Any, row: Any) -> Any:
    return {"sum": state["sum"] + row["amount"]}


def build(app: Application) -> None:
    amounts = parse_json(app.stream("amounts"), {"amount": FieldType.NUMBER})
    text_key = F.col("key").cast("string")
    # Python's operators: the sum of a key overflows.
    summing = Reduce(total, first=lambda row: {"sum": row["amount"]})
    app.store("folded", aggregate(amounts, summing))
    app.store("recent", amounts.withColumn("key", text_key), max_entries=5, aggregator=summing)
    # Spark's: a double as text is no JSON if it is infinite; as a field of an object it is named.
    by_key = amounts.groupBy(text_key.alias("key")).agg(F.sum("amount").alias("sum"))
    sums = app.query("sums", by_key.withColumn("value", F.col("sum").cast("string")))
    sums.store("plain")
    sums.store("object", columns={"value": F.to_json(F.struct("sum"))})
    # The source as it is: text in a JSON store, and in others.
    as_they_are = app.query("as-they-are", app.stream("texts").select(text_key.alias("key"), F.col("value")))
    as_they_are.store("as-json")
    as_they_are.store("as-text", value_serde="string")
    as_they_are.store("as-long", value_serde="long")


def test_unreadable_values_are_dead_letters_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    topology = TopologyTest("app", build, spark, tmp_path)
    for second in range(2):
        records = [Record(key, f'{{"amount":{each}}}', BEGAN_MS + second * 1000) for key, each in AMOUNTS.items()]
        topology.pipe("amounts", *records)
        if second:
            topology.pipe("texts", Record("dan", b"\xff"), Record("dan", "12345678"), Record("dan", "plain text"))
        topology.run()
    for store in ("folded", "recent", "plain"):
        found = {
            key: value["sum"] if isinstance(value, dict) else value for key, value in topology.store(store).items()
        }
        assert found == {"ann": 1e308, "bob": 3, "cid": 1e308}, store
    assert topology.store("object") == {
        "ann": {"sum": "Infinity"},
        "bob": {"sum": 3},
        "cid": {"sum": "Infinity"},
    }
    assert topology.store("as-json")["dan"] == 12345678
    assert topology.store("as-text")["dan"] == "plain text"
    assert topology.store("as-long") == {"dan": int.from_bytes(b"12345678", "big")}
    told = [letter.detail for letter in topology.dead_letters if letter.reason == "unreadable_value"]
    for store, key in (("folded", "ann"), ("recent", "cid"), ("plain", "ann"), ("as-json", "dan"), ("as-text", "dan")):
        assert any(f"store '{store}', key '{key}'" in each for each in told), (store, key)
