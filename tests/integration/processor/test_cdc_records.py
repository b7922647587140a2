"""Debezium's records: single ones, and many made-up ones against a plain model; all in few jobs, which cost most."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Count
from processor.operators.cdc_records import parse_cdc
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType
from processor.operators.table_aggregates import aggregate_table
from processor.testing import Record, TopologyTest
from statehouse.errors import ConfigurationError

FIELDS = {"name": FieldType.TEXT}
OPTIONAL = {"stock": FieldType.INTEGER}
ID = {"id": FieldType.INTEGER}
PAIR = {"id": FieldType.INTEGER, "line": FieldType.TEXT}
SCHEMA = {"type": "struct", "optional": False}


def envelope(op: str, before: object = None, after: object = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"table": "items", "lsn": 7}, "op": op, "ts_ms": 5}


def wrapped(payload: object) -> dict[str, Any]:
    return {"schema": SCHEMA, "payload": payload}


def text(document: object) -> bytes | None:
    return document if document is None or isinstance(document, bytes) else json.dumps(document).encode()


SAW = {"id": 4, "name": "saw", "stock": 3}
# Key, value -> table key, deleted, name, stock; or the reason of the refusal and a part of its detail.
CASES: list[tuple[object, object, tuple[Any, ...]]] = [
    ({"id": 4}, envelope("c", None, SAW), ("4", False, "saw", 3)),
    ({"id": 4}, envelope("r", None, SAW), ("4", False, "saw", 3)),
    ({"id": 4.0}, envelope("u", SAW, SAW | {"stock": None}), ("4", False, "saw", None)),
    ({"id": 4}, envelope("u", None, {"id": 4, "name": "saw"}), ("4", False, "saw", None)),
    ({"id": 4}, envelope("d", SAW), ("4", True, None, None)),
    ({"id": 4}, envelope("d"), ("4", True, None, None)),
    ({"id": 4}, None, ("4", True, None, None)),
    (wrapped({"id": 4}), wrapped(envelope("c", None, SAW)), ("4", False, "saw", 3)),
    (wrapped({"id": 4}), envelope("d", SAW), ("4", True, None, None)),
    (wrapped({"id": 4}), None, ("4", True, None, None)),
    ({"id": 4}, {"schema": None, "payload": envelope("c", None, SAW)}, ("4", False, "saw", 3)),
    ({"id": 4}, {"op": "c", "after": SAW}, ("4", False, "saw", 3)),
    (None, envelope("t"), ("unsupported_operation", "op 't'")),
    ({"id": 4}, envelope("m"), ("unsupported_operation", "op 'm'")),
    ({"id": 4}, SAW, ("missing_field", "'op' is missing")),
    ({"id": 4}, envelope("c", SAW), ("missing_field", "op 'c' needs a row in 'after'")),
    ({"id": 4}, envelope("u", SAW, [1]), ("missing_field", "op 'u' needs a row")),
    ({"id": 4}, envelope("c", None, {"id": 4}), ("missing_field", "'name' is missing")),
    ({"id": 4}, envelope("c", None, SAW | {"name": 1}), ("wrong_type", "'name' is BIGINT")),
    ({"id": 4}, envelope("c", None, SAW | {"stock": "3"}), ("wrong_type", "'stock' is STRING")),
    ({"id": 4}, b"{", ("not_json", "")),
    ({"id": 4}, b"\xff", ("not_json", "")),
    ({"id": 4}, [1], ("wrong_type", "expected an object")),
    ({"id": 4}, b"null", ("wrong_type", "expected an object")),
    (None, envelope("c", None, SAW), ("null_key", "needs a key")),
    (None, None, ("null_key", "needs a key")),
    ({"no": 4}, envelope("c", None, SAW), ("missing_field", "the key's field 'id' is missing")),
    ({"id": "4"}, envelope("c", None, SAW), ("wrong_type", "the key's field 'id' is STRING")),
    ({"id": None}, None, ("wrong_type", "the key's field 'id' is VOID")),
    (b"4", envelope("d", SAW), ("missing_field", "the key's field 'id' is missing")),
    (b"{", envelope("d", SAW), ("missing_field", "the key's field 'id' is missing")),
]


def parsed(spark: SparkSession, records: list[tuple[object, object]], **options: Any) -> list[Row]:
    rows = [[each if each is None else bytearray(each) for each in (text(key), text(value))] for key, value in records]
    frame = spark.createDataFrame(rows, "key binary, value binary").coalesce(1)
    return parse_cdc(frame, FIELDS, optional=OPTIONAL, **options).collect()


@pytest.mark.feature("changes-database")
def test_each_kind_of_record(spark: SparkSession):
    rows = parsed(spark, [(key, value) for key, value, _ in CASES], key=ID)
    assert len(rows) == len(CASES)
    for (_, _, expected), row in zip(CASES, rows, strict=True):
        if len(expected) == 4:
            assert (row.table_key, row.deleted, row.name, row.stock, row.reason) == (*expected, None)
        else:
            assert (row.reason, expected[1] in row.detail) == (expected[0], True), row
    assert rows[0].__fields__ == ["key", "value", "table_key", "name", "stock", "reason", "detail", "deleted"]


@pytest.mark.feature("changes-database")
def test_made_up_histories_end_as_the_database(spark: SparkSession):
    """The key comes from the row, of two columns; updates may change it."""
    random, database = Random(7), dict[tuple[int, str], dict[str, Any]]()
    records: list[tuple[object, object]] = []
    for _ in range(600):
        key = (random.randrange(5), random.choice("ab"))
        before = database.get(key)
        fate = random.random()
        if before is not None and fate < 0.3:
            del database[key]
            records += [(None, envelope("d", before)), (b"any", None)]
            continue
        target = key
        if before is not None and fate < 0.6:
            target = (random.randrange(5), random.choice("ab"))
            if target != key and target in database:
                continue
            del database[key]
        after = {"id": target[0], "line": target[1], "name": random.choice("xyz"), "stock": random.choice([None, 1, 2])}
        database[target] = after
        change = envelope("c" if before is None else "u", before, after)
        records.append((None, wrapped(change) if random.random() < 0.5 else change))
    table: dict[str, tuple[Any, ...]] = {}
    for row in parsed(spark, records, key=PAIR, key_from_row=True):
        assert row.reason is None
        table.pop(row.table_key, None)
        if not row.deleted:
            table[row.table_key] = (row.name, row.stock)
    keyed = {
        json.dumps({"id": each, "line": line}, separators=(",", ":")): row for (each, line), row in database.items()
    }
    assert table == {key: (row["name"], row["stock"]) for key, row in keyed.items()}


def test_a_key_needs_columns(spark: SparkSession):
    with pytest.raises(ConfigurationError, match="key must name"):
        parsed(spark, [(None, None)], key={})


def build(app: Application) -> None:
    items = parse_cdc(app.table("items"), FIELDS, key=ID, optional=OPTIONAL)
    shown = F.when(~F.col("deleted"), F.to_json(F.struct("name", "stock")))
    value = F.when(F.col("reason").isNull(), shown.cast("binary")).otherwise(F.col("value"))
    own = F.when(F.col("reason").isNull(), F.col("table_key").cast("binary")).otherwise(F.col("key"))
    app.store("items", items.withColumns({"key": own, "value": value}))


def build_groups(app: Application) -> None:
    items = parse_cdc(app.table("items"), FIELDS, key=ID, optional=OPTIONAL)
    app.store("items-per-name", aggregate_table(items, F.upper("name"), Count()))


@pytest.mark.feature("aggregate-table")
def test_an_aggregate_of_a_table_subtracts_the_row_that_is_replaced(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("inventory", build_groups, spark, tmp_path)

    def after(*records: tuple[int, str | None]) -> dict[str, int]:
        for number, name in records:
            value = envelope("d") if name is None else envelope("u", None, {"id": number, "name": name})
            topology.pipe("items", Record(text({"id": number}), text(value)))
        return topology.run().store("items-per-name")

    assert after((1, "saw"), (2, "saw"), (3, "axe")) == {"SAW": 2, "AXE": 1}
    assert after((1, "saw"), (3, "saw")) == {"SAW": 3}
    topology.pipe("items", Record(text({"id": 9}), "{"))
    assert after((1, "axe"), (2, None)) == {"SAW": 1, "AXE": 1}
    assert [letter.reason for letter in topology.dead_letters] == ["not_json"]


def test_tables_and_events_have_their_own_aggregates(spark: SparkSession):
    rows = spark.createDataFrame([], "key binary, value binary")
    with pytest.raises(ConfigurationError, match="aggregate_table"):
        aggregate(parse_cdc(rows, FIELDS, key=ID), Count())
    with pytest.raises(ConfigurationError, match="lacks deleted, table_key"):
        aggregate_table(rows, "key", Count())


@pytest.mark.feature("changes-database")
def test_a_table_becomes_a_store(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("inventory", build, spark, tmp_path)
    axe = (text({"id": 5}), text(envelope("c", None, {"id": 5, "name": "axe"})))
    records = [*((text(key), text(value)) for key, value, _ in CASES), axe]
    topology.pipe("items", *(Record(key, value, 1_700_000_000_000) for key, value in records))
    assert topology.run().store("items") == {"4": {"name": "saw", "stock": 3}, "5": {"name": "axe"}}
    assert len(topology.dead_letters) == sum(len(expected) == 2 for _, _, expected in CASES)
