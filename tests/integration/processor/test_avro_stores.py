"""Structs in stores are written as Avro in the registry's wire format; the registry is a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.text_records import parse_text
from processor.testing import Record, TopologyTest
from statehouse.errors import ConfigurationError
from statehouse.local.kafka import EmbeddedKafka
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.wire_format import unframed
from tests.integration.processor import avro_orders
from tests.integration.processor.running import running_example
from tests.support.kafka import create_topic, produce
from tests.support.registry import SchemaRegistry, registry_client

pytestmark = pytest.mark.timeout(240)
TIME = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def every_type(app: Application) -> None:
    kinds = F.struct(
        F.lit(True).alias("flag"),
        F.lit(7).alias("number"),
        F.col("text").cast("bigint").alias("long"),
        F.lit(0.5).alias("ratio"),
        F.lit(0.25).cast("float").alias("half"),
        F.lit("text").alias("text"),
        F.lit(bytearray(b"\0\xff")).alias("raw"),
        F.lit(TIME).alias("at"),
        F.lit(TIME.date()).alias("day"),
        F.lit(Decimal("12.50")).cast("decimal(9,2)").alias("price"),
        F.array(F.lit("a"), F.lit(None)).alias("items"),
        F.create_map(F.lit("k"), F.struct(F.lit(1).alias("inner"))).alias("named"),
        F.lit(None).cast("string").alias("nothing"),
    )
    rows = parse_text(app.stream("numbers")).where(F.col("reason").isNull())
    wanted = F.when(F.col("text") != "-1", kinds)
    app.store("kinds", rows.select("key", wanted.alias("value"), "timestamp"), value_serde="avro")


@pytest.mark.feature("stores-written-avro")
@pytest.mark.long
def test_every_type_is_read_by_confluents_own_reader(
    spark: SparkSession, tmp_path: Path, registry: SchemaRegistry
) -> None:
    options = SerdeOptions(registry.wait().url)
    topology = TopologyTest("kinds", every_type, spark, tmp_path, registry=options)
    topology.pipe("numbers", Record("a", str(2**60)), Record("b", "-1")).run()
    first, gone = topology.records("kinds")
    assert (gone.key, gone.value) == (b"b", None), "a null struct deletes"
    topic = "kinds-kinds-changelog"
    with registry_client(registry.url) as client:
        read: Any = AvroDeserializer(client)(first.value, SerializationContext(topic, MessageField.VALUE))
        assert client.get_latest_version(f"{topic}-value").schema_id == unframed(first.value or b"")[0]
    assert read == {
        "flag": True,
        "number": 7,
        "long": 2**60,
        "ratio": 0.5,
        "half": 0.25,
        "text": "text",
        "raw": b"\0\xff",
        "at": TIME,
        "day": date(2026, 1, 31),
        "price": Decimal("12.50"),
        "items": ["a", None],
        "named": {"k": {"inner": 1}},
        "nothing": None,
    }


@pytest.mark.feature("stores-written-avro")
def test_without_a_registry_the_application_does_not_start(spark: SparkSession, tmp_path: Path) -> None:
    for options, why in ((SerdeOptions(), "set schema_registry_url"), (SerdeOptions("http://127.0.0.1:1"), "be read")):
        with pytest.raises(ConfigurationError, match=f"'kinds-kinds-changelog-value' can't be registered: .*{why}"):
            TopologyTest("kinds", every_type, spark, tmp_path, registry=options)


@pytest.mark.feature("stores-written-avro")
def test_what_a_processor_writes_is_what_nodes_show(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, registry: SchemaRegistry
) -> None:
    create_topic(kafka.bootstrap, avro_orders.ORDERS)
    orders = {
        b"1": {"id": 1, "user": "ann", "note": "first"},
        b"2": {"id": 2, "user": "bob"},
        b"3": {"id": 3, "user": "ann", "gone": "yes"},
    }
    produce(kafka.bootstrap, avro_orders.ORDERS, ((key, json.dumps(order).encode()) for key, order in orders.items()))
    produce(kafka.bootstrap, avro_orders.ORDERS, [(b"4", b"no order")])
    url = registry.wait().url
    node = {"schema_registry_url": url}
    with running_example(
        "tests.integration.processor.avro_orders", kafka.bootstrap, tmp_path, node=node, schema_registry_url=url
    ) as app:
        expected = {
            "1": {"id": 1, "note": "first", "buyers": [{"user": "ann"}]},
            "2": {"id": 2, "note": None, "buyers": [{"user": "bob"}]},
        }
        app.becomes(lambda: app.store("orders"), expected, "the orders")
        counts = {'{"user":"ann"}': {"orders": 2}, '{"user":"bob"}': {"orders": 1}}
        app.becomes(lambda: app.store("per-user"), counts, "orders by user")
        assert set(app.reasons()) == {"not_json"}
