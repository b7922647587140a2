"""Malformed records and well-formed ones; all cases in one job, since a job costs more than a thousand rows."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Reduce
from processor.operators.fields.types import Field
from processor.operators.fold import aggregate
from processor.operators.joins import JoinedTable, stream_global_table_join
from processor.operators.json_records import FieldType, parse_json, parse_json_table
from processor.testing import Record, TopologyTest
from statehouse.errors import ConfigurationError

# Value -> what the fields become, or the reason of the refusal and a part of its detail.
RECORDS = {
    b'{"n":1,"i":2,"t":"x"}': (1.0, 2, "x"),
    b' {"t" : "x", "i":2.0, "n":12.5, "more":[1]}\n': (12.5, 2, "x"),
    b'{"n":-0.0,"i":6e0,"t":""}': (0.0, 6, ""),
    b'{"n":1e-29,"i":100.0,"t":"Zo\\u00eb"}': (1e-29, 100, "Zoë"),
    b'{"n":12345678901234567890,"i":9007199254740993.0,"t":"x"}': (12345678901234567890.0, 9007199254740993, "x"),
    b'{"n":0.1,"i":9223372036854775807,"t":"x"}': (0.1, 9223372036854775807, "x"),
    b'{"n":1,"i":-3,"t":"x"}': (1.0, -3, "x"),
    None: ("null_value", "no value"),
    b"": ("not_json", "not a JSON document"),
    b"\xff\xfe": ("not_json", ""),
    b'{"n":1,"i":2,"t":"\xff"}': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"} x': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"}] x': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"},2': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"},"end"': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x",}': ("not_json", ""),
    b"{'n':1,'i':2,'t':'x'}": ("not_json", ""),
    b'{"n":01,"i":2,"t":"x"}': ("not_json", ""),
    b'{"n":1,"n":1,"i":2,"t":"x"}': ("not_json", ""),
    b"[" * 2000: ("not_json", ""),
    b"null": ("wrong_type", "expected an object"),
    b"[1]": ("wrong_type", "ARRAY<BIGINT>, expected an object"),
    b'{"i":2,"t":"x"}': ("missing_field", "'n' is missing"),
    b'{"N":1,"i":2,"t":"x"}': ("missing_field", "'n' is missing"),
    b'{"n":1,"i":2}': ("missing_field", "'t' is missing"),
    b'{"n":"1","i":2,"t":"x"}': ("wrong_type", "'n' is STRING, expected a finite number"),
    b'{"n":true,"i":2,"t":"x"}': ("wrong_type", "'n' is BOOLEAN"),
    b'{"n":null,"i":2,"t":"x"}': ("wrong_type", "'n' is VOID"),
    b'{"n":NaN,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE, expected a finite number"),
    b'{"n":-Infinity,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE"),
    b'{"n":1e400,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE"),
    b'{"n":1,"i":6.5,"t":"x"}': ("wrong_type", "'i' is DECIMAL(2,1), expected an integer of 64 bits"),
    b'{"n":1,"i":1e-29,"t":"x"}': ("wrong_type", "'i' is DOUBLE"),
    b'{"n":1,"i":0.00000000000000000000000000001,"t":"x"}': ("wrong_type", "'i' is DECIMAL(29,29)"),
    b'{"n":1,"i":9223372036854775808,"t":"x"}': ("wrong_type", "'i' is DECIMAL(19,0)"),
    b'{"n":1,"i":1e19,"t":"x"}': ("wrong_type", "'i' is DOUBLE"),
    b'{"n":1,"i":[1],"t":"x"}': ("wrong_type", "'i' is ARRAY<BIGINT>"),
    b'{"n":1,"i":2,"t":5}': ("wrong_type", "'t' is BIGINT, expected a string"),
}

# A type -> texts of JSON, each with what it becomes; those without are refused.
TYPES: dict[str, tuple[Field, dict[str, Any], list[str]]] = {
    "boolean": (FieldType.BOOLEAN, {"true": True, "false": False}, ["null", '"true"', "1"]),
    "timestamp": (
        FieldType.TIMESTAMP,
        {
            '"2026-01-31T09:02:00.123456+01:00"': datetime(2026, 1, 31, 8, 2, 0, 123456, UTC),
            '"2026-01-31T09:02:00"': datetime(2026, 1, 31, 9, 2, tzinfo=UTC),
            '"1969-12-31T23:59:59Z"': datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        },
        ['"2026-01-31"', '"2026-02-30T00:00:00Z"', "1769850120", '" 2026-01-31T09:02:00Z"'],
    ),
    "date": (
        FieldType.DATE,
        {'"2026-01-31"': date(2026, 1, 31)},
        ['"2026-1-31"', '"2026-02-30"', '"31.1.2026"', "20260131"],
    ),
    "decimal": (
        FieldType.decimal(6, 2),
        {
            "12": Decimal("12.00"),
            "-0.10": Decimal("-0.10"),
            "9999.99": Decimal("9999.99"),
            "1.5e2": Decimal("150.00"),
            "0.100": Decimal("0.10"),
        },
        ["10000", "0.005", "1e400", '"12.00"', "12.345", "null"],
    ),
    "nested": (
        FieldType.nested({"street": FieldType.TEXT}, {"zip": FieldType.INTEGER}),
        {
            '{"street":"a","zip":7,"more":1}': {"street": "a", "zip": 7},
            '{"street":"a"}': {"street": "a", "zip": None},
            '{"street":"a","zip":null}': {"street": "a", "zip": None},
        },
        ['{"zip":7}', '{"street":1}', '{"street":"a","zip":"7"}', "[]", "null"],
    ),
    "list": (
        FieldType.list_of(FieldType.INTEGER),
        {"[]": [], "[1,2.0]": [1, 2]},
        ["[1,null]", '[1,"2"]', "1", '{"0":1}', "null"],
    ),
    "list of objects": (
        FieldType.list_of(FieldType.nested({"n.a": FieldType.list_of(FieldType.DATE)})),
        {'[{"n.a":["2026-01-31"]},{"n.a":[]}]': [{"n.a": [date(2026, 1, 31)]}, {"n.a": []}]},
        ['[{"n.a":["2026"]}]', '[{"n":{"a":[]}}]'],
    ),
}

# Key -> what the table's key becomes, or the reason.
KEYS = {
    b"2": "2",
    b"6.0": "6",
    b"-4": "-4",
    None: ("null_key", "needs a key"),
    b"abc": ("wrong_type", "the key is not an integer"),
    b"6.5": ("wrong_type", "the key is not an integer"),
    b"06": ("wrong_type", "the key is not an integer"),
    b"": ("wrong_type", "the key is not an integer"),
    b'"2"': ("wrong_type", "the key is not an integer"),
}


@pytest.fixture(scope="module")
def parsed(spark: SparkSession):
    fields = {"n": FieldType.NUMBER, "i": FieldType.INTEGER, "t": FieldType.TEXT}
    rows = [(None if value is None else bytearray(value),) for value in RECORDS]
    frame = parse_json(spark.createDataFrame(rows, "value binary").coalesce(1), fields)
    return dict(zip(RECORDS, frame.collect(), strict=True))


@pytest.mark.feature("records-t-used")
@pytest.mark.parametrize("value", RECORDS, ids=repr)
def test_a_value(parsed: dict[bytes | None, Row], value: bytes | None):
    row, expected = parsed[value], RECORDS[value]
    if len(expected) == 3:
        assert (row.n, row.i, row.t, row.reason, row.detail) == (*expected, None, None)
    else:
        assert row.reason == expected[0]
        assert expected[1] in row.detail


def test_a_tables_keys_and_deletes(spark: SparkSession):
    rows = [(key if key is None else bytearray(key), value) for key in KEYS for value in (b'{"i":1}', None)]
    rows.append((bytearray(b"9"), b"x"))
    frame = spark.createDataFrame(
        [(key, None if value is None else bytearray(value)) for key, value in rows], "key binary, value binary"
    )
    fields = {"i": FieldType.INTEGER}
    found = parse_json_table(frame.coalesce(1), fields, key_type=FieldType.INTEGER).collect()
    for (_, value), row in zip(rows[:-1], found[:-1], strict=True):
        expected = KEYS[None if row.key is None else bytes(row.key)]
        if isinstance(expected, str):
            assert (row.table_key, row.reason, row.deleted) == (expected, None, value is None)
        else:
            assert row.reason == expected[0]
            assert expected[1] in row.detail
    assert found[-1].reason == "not_json"


@pytest.mark.feature("field-types")
@pytest.mark.parametrize("name", TYPES)
def test_a_type(spark: SparkSession, name: str):
    kind, taken, refused = TYPES[name]
    rows = [(bytearray(f'{{"of.it":{text}}}'.encode()),) for text in (*taken, *refused)]
    found = parse_json(spark.createDataFrame(rows, "value binary").coalesce(1), {"of.it": kind}).collect()
    for text, row in zip((*taken, *refused), found, strict=True):
        value = row["of.it"]
        if text in taken:
            assert row.reason is None, (text, row.detail)
            assert _plain(value) == taken[text], text
        else:
            assert (row.reason, value) == ("wrong_type", None), text
            assert f"expected {kind.words}" in row.detail


def _plain(value: Any) -> Any:
    """Return a value without classes of Spark; its times, which are naive and of the test's zone, are made UTC."""
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@pytest.mark.feature("field-types")
def test_a_dot_in_a_fields_name_is_no_path(spark: SparkSession, tmp_path: Path):
    def build(app: Application) -> None:
        fields = {"a.b": FieldType.INTEGER, "since.at": FieldType.DATE}
        parsed = parse_json(app.stream("events"), fields)
        app.store("plain", parsed.withColumn("value", F.col("`a.b`").cast("string")))
        app.store("summed", aggregate(parsed, Reduce(_larger)))
        rows = parse_json_table(app.global_table("rows"), fields)
        joined = stream_global_table_join(parsed, JoinedTable(rows, "`a.b`", {"row.b": "`a.b`"}, "no_row", "rows"))
        app.store("joined", joined, value=["a.b", "row.b", "since.at"])

    topology = TopologyTest("dots", build, spark, tmp_path)
    for topic, key in (("rows", "7"), ("events", "x")):
        topology.pipe(topic, Record(key, '{"a.b":7,"since.at":"2026-01-31"}', 1_000))
    topology.run()
    assert topology.dead_letters == []
    assert topology.store("plain") == {"x": 7}
    assert topology.store("summed") == {"x": {"key": "x", "a.b": 7, "since.at": "2026-01-31"}}
    assert topology.store("joined") == {"x": {"a.b": 7, "row.b": 7, "since.at": "2026-01-31"}}


def _larger(state: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return max(state, row, key=lambda each: each["a.b"])


@pytest.mark.feature("field-types")
@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 2), (4, 5), (4, -1)])
def test_a_decimal_that_spark_lacks_is_refused(precision: int, scale: int):
    with pytest.raises(ConfigurationError, match=r"FieldType\.decimal"):
        FieldType.decimal(precision, scale)


def test_a_fields_name_cannot_break_out_of_its_path(spark: SparkSession):
    frame = spark.createDataFrame([(bytearray(b"{}"),)], "value binary")
    with pytest.raises(ValueError, match="quote"):
        parse_json(frame, {"a'b": FieldType.TEXT})
