"""Avro and Protobuf records as typed columns in Spark; the schemas come over HTTP, from a server of the test's own."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.cdc_records import parse_cdc
from processor.operators.json_records import FieldType
from processor.operators.registry_records import (
    parse_avro,
    parse_avro_table,
    parse_protobuf,
    parse_protobuf_table,
)
from processor.rows import ORIGIN
from processor.testing import Record, TopologyTest
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.wire_format import framed
from tests.support.protobuf_indexes import with_indexes
from tests.support.registry import registry_of

OLD = {"type": "record", "name": "View", "fields": [{"name": "n", "type": "long"}, {"name": "page", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "ms", "type": ["null", "double"]}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", OLD]},
        {"name": "after", "type": ["null", "View"]},
        {"name": "op", "type": "string"},
    ],
}
FIELDS = {"n": FieldType.INTEGER, "page": FieldType.TEXT}
OPTIONAL = {"ms": FieldType.NUMBER}


def avro(schema_id: int, schema: Any, value: dict[str, object]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return framed(schema_id, target.getvalue())


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="view.proto", syntax="proto3")
    view = file.message_type.add(name="View")
    view.field.add(name="n", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    view.field.add(name="page", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    return file


def protobuf(n: int, page: str) -> bytes:
    pool = DescriptorPool()
    pool.Add(descriptor())
    message = GetMessageClass(pool.FindMessageTypeByName("View"))(n=n, page=page)
    return framed(3, with_indexes([0], message.SerializeToString()))


@pytest.fixture(scope="module")
def registry() -> Iterator[SerdeOptions]:
    compiled = base64.b64encode(descriptor().SerializeToString()).decode()
    schemas = {1: ("AVRO", json.dumps(OLD)), 2: ("AVRO", json.dumps(NEW)), 3: ("PROTOBUF", compiled)}
    schemas[4] = ("AVRO", json.dumps(ENVELOPE))
    with registry_of(schemas) as url:
        yield SerdeOptions(url)


def frame(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    return table(spark, [(b"k", value) for value in values])


def table(spark: SparkSession, records: list[tuple[bytes | None, bytes | None]]) -> DataFrame:
    rows = [(key, value, "views", 0, offset, None) for offset, (key, value) in enumerate(records)]
    schema = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return spark.createDataFrame(rows, schema).coalesce(1)


@pytest.mark.feature("avro-protobuf-sources")
def test_avro_by_the_schema_that_each_was_written_with(spark: SparkSession, registry: SerdeOptions) -> None:
    sound = avro(1, OLD, {"n": 2**62 + 1, "page": "home"})
    values = {
        sound: (2**62 + 1, "home", None),
        avro(2, NEW, {"n": 1, "page": "cart", "ms": 0.5}): (1, "cart", 0.5),
        avro(2, NEW, {"n": 1, "page": "cart", "ms": None}): (1, "cart", None),
        None: ("null_value", "no value"),
        b"{}": ("not_decodable", "zero byte"),
        sound[:-1]: ("not_decodable", "not what schema 1 says"),
        framed(9, b"x"): ("not_decodable", "has no schema 9"),
        framed(3, b"x"): ("not_decodable", "of type PROTOBUF, not AVRO"),
        avro(2, NEW, {"n": 1, "page": "cart", "ms": float("nan")}): (
            "wrong_type",
            "'ms' is STRING",
        ),
    }
    parsed = parse_avro(frame(spark, list(values)), FIELDS, registry=registry, optional=OPTIONAL)
    assert {*ORIGIN, "n", "page", "ms", "reason", "detail"} == {*parsed.columns}
    for (value, expected), row in zip(values.items(), parsed.orderBy("offset").collect(), strict=True):
        if len(expected) == 3:
            assert (row.n, row.page, row.ms, row.reason, row.detail) == (*expected, None, None)
        else:
            assert row.reason == expected[0], row
            assert expected[1] in row.detail
        # A dead letter is the record as it came.
        assert row.value == value


def test_a_table_of_avro_with_keys_in_text(spark: SparkSession, registry: SerdeOptions) -> None:
    value = avro(1, OLD, {"n": 7, "page": "home"})
    records: list[tuple[bytes | None, bytes | None]] = [
        (b"6.0", value),
        (b"6", None),
        (b"6", framed(9, b"x")),
        (b"x", value),
        (None, value),
    ]
    parsed = parse_avro_table(table(spark, records), FIELDS, registry=registry, key_type=FieldType.INTEGER)
    assert {*ORIGIN, "n", "page", "table_key", "deleted", "reason", "detail"} == {*parsed.columns}
    found = [(row.table_key, row.deleted, row.n, row.reason) for row in parsed.orderBy("offset").collect()]
    assert found == [
        ("6", False, 7, None),
        ("6", True, None, None),
        ("6", False, None, "not_decodable"),
        (None, False, 7, "wrong_type"),
        (None, False, 7, "null_key"),
    ]
    texts = parse_avro_table(table(spark, [(b"ann", value)]), FIELDS, registry=registry).collect()
    assert [(row.table_key, row.page) for row in texts] == [("ann", "home")]


@pytest.mark.feature("avro-protobuf-sources")
def test_a_table_of_avro_with_keys_that_are_records_too(spark: SparkSession, registry: SerdeOptions) -> None:
    key, value = avro(1, OLD, {"n": 5, "page": "key"}), avro(2, NEW, {"n": 7, "page": "home", "ms": None})
    records: list[tuple[bytes | None, bytes | None]] = [(key, value), (key, None), (b"5", value), (None, value)]
    by_number = parse_avro_table(
        table(spark, records), FIELDS, registry=registry, key_field="n", key_type=FieldType.INTEGER
    )
    found = [(row.table_key, row.deleted, row.page, row.reason) for row in by_number.orderBy("offset").collect()]
    assert found == [
        ("5", False, "home", None),
        ("5", True, None, None),
        (None, False, "home", "not_decodable"),
        (None, False, "home", "null_key"),
    ]
    by_text = parse_avro_table(table(spark, records[:1]), FIELDS, registry=registry, key_field="page")
    assert [row.table_key for row in by_text.collect()] == ["key"]
    wrong = parse_avro_table(table(spark, records[:1]), FIELDS, registry=registry, key_field="n").collect()
    assert [(row.reason, row.detail) for row in wrong] == [("wrong_type", "the key's field 'n' is not a string")]


@pytest.mark.feature("avro-protobuf-sources")
def test_protobuf(spark: SparkSession, registry: SerdeOptions) -> None:
    sound = protobuf(2**62 + 1, "home")
    parsed = parse_protobuf(frame(spark, [sound, framed(3, b"\x02\x08")]), FIELDS, registry=registry)
    good, bad = parsed.orderBy("offset").collect()
    assert (good.n, good.page, good.reason) == (2**62 + 1, "home", None)
    assert (bad.reason, bad.n) == ("not_decodable", None)

    rows: list[tuple[bytes | None, bytes | None]] = [(sound, sound), (b"k", None)]
    by_field = parse_protobuf_table(table(spark, rows[:1]), FIELDS, registry=registry, key_field="page").collect()
    assert [(row.table_key, row.n, row.deleted) for row in by_field] == [("home", 2**62 + 1, False)]
    by_text = parse_protobuf_table(table(spark, rows[1:]), FIELDS, registry=registry).collect()
    assert [(row.table_key, row.n, row.deleted, row.reason) for row in by_text] == [("k", None, True, None)]


@pytest.mark.feature("avro-protobuf-sources")
def test_streams_and_tables_as_they_go_on(spark: SparkSession, registry: SerdeOptions, tmp_path: Path) -> None:
    def build(app: Application) -> None:
        views = parse_avro(app.stream("avro"), FIELDS, registry=app.registry, optional=OPTIONAL)
        clicks = parse_protobuf(app.stream("protobuf"), FIELDS, registry=app.registry)
        pages = parse_avro_table(app.table("table"), FIELDS, registry=app.registry)
        both = views.drop("ms").unionByName(clicks)
        shown = F.to_json(F.struct("n"))
        app.store("views", both.withColumns({"key": F.concat("topic", F.lit(" "), "page"), "value": shown}))
        kept = F.when(~F.col("deleted"), shown)
        app.store("pages", pages.withColumns({"key": F.col("table_key"), "value": kept}))

    topology = TopologyTest("app", build, spark, tmp_path, registry=registry)
    topology.pipe("avro", Record("k", avro(1, OLD, {"n": 1, "page": "home"})), Record("k", framed(9, b"x")))
    topology.pipe("protobuf", Record("k", protobuf(2, "home")), Record("k", framed(1, b"x")))
    topology.pipe("table", *(Record(key, avro(1, OLD, {"n": 3, "page": "any"})) for key in ("ann", "bob")))
    topology.run()
    assert topology.store("views") == {"avro home": {"n": 1}, "protobuf home": {"n": 2}}
    assert topology.store("pages") == {"ann": {"n": 3}, "bob": {"n": 3}}
    assert [letter.reason for letter in topology.dead_letters] == ["not_decodable"] * 2

    # A later batch of the same streams, by then with a newer schema.
    topology.pipe("avro", Record("k", avro(2, NEW, {"n": 4, "page": "cart", "ms": 0.5})))
    topology.pipe("protobuf", Record("k", protobuf(5, "home")))
    topology.pipe("table", Record("ann", None), Record("bob", avro(2, NEW, {"n": 6, "page": "any", "ms": None})))
    topology.run()
    assert topology.store("views") == {"avro home": {"n": 1}, "avro cart": {"n": 4}, "protobuf home": {"n": 5}}
    assert topology.store("pages") == {"bob": {"n": 6}}
    assert len(topology.dead_letters) == 2


def test_without_a_registry_the_batch_fails_and_no_record_is_blamed(spark: SparkSession) -> None:
    nowhere = SerdeOptions("http://127.0.0.1:1", timeout_s=0.5)
    parsed = parse_avro(frame(spark, [framed(1, b"\x02\x02a")]), FIELDS, registry=nowhere)
    with pytest.raises(PySparkException, match=r"schema registry at http://127\.0\.0\.1:1 can't be read"):
        parsed.collect()


@pytest.mark.feature("changes-database")
def test_debezium_s_records_in_avro(spark: SparkSession, registry: SerdeOptions):
    key, row = avro(1, OLD, {"n": 7, "page": "home"}), {"n": 7, "page": "home"}
    written = [avro(4, ENVELOPE, {"before": None, "after": row, "op": "c"})]
    written.append(avro(4, ENVELOPE, {"before": row, "after": None, "op": "d"}))
    records = [*((key, value) for value in written), (key, None), (key, b"x"), (b"x", None)]
    rows = parse_cdc(table(spark, records), FIELDS, key={"n": FieldType.INTEGER}, registry=registry).collect()
    assert [(each.table_key, each.deleted, each.page, each.reason) for each in rows[:3]] == [
        ("7", False, "home", None),
        ("7", True, None, None),
        ("7", True, None, None),
    ]
    assert [each.reason for each in rows[3:]] == ["not_decodable"] * 2
