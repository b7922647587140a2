"""Avro schemas made from the types of Spark's columns, and the stores that may have structs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as T  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.outputs.avro_records import avro_schema
from processor.rows import REFUSAL
from statehouse.errors import ConfigurationError

VALUE = T.StructType([T.StructField("id", T.LongType(), nullable=False), T.StructField("note", T.StringType())])


@pytest.mark.feature("stores-written-avro")
def test_a_schema_has_the_fields_of_the_struct_and_defaults_of_what_may_be_null() -> None:
    assert json.loads(avro_schema(VALUE, "my-app", "2nd", "value")) == {
        "type": "record",
        "name": "value",
        "namespace": "my_app._2nd",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }


def test_nested_types_have_names_of_their_own() -> None:
    inner = T.StructType([T.StructField("x", T.IntegerType())])
    both = T.StructType(
        [
            T.StructField("left", inner),
            T.StructField("right", T.ArrayType(inner)),
            T.StructField("named", T.MapType(T.StringType(), inner)),
            T.StructField("price", T.DecimalType(9, 2)),
            T.StructField("at", T.TimestampType()),
        ]
    )
    parsed: Any = fastavro.parse_schema(json.loads(avro_schema(both, "app", "store", "value")))
    assert [field["name"] for field in parsed["fields"]] == ["left", "right", "named", "price", "at"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (T.MapType(T.IntegerType(), T.StringType()), "Avro has no map<int,string>"),
        (T.DayTimeIntervalType(), "Avro has no interval day to second"),
        (T.StructType([T.StructField("a-b", T.IntegerType())]), "no field named 'a-b'"),
    ],
)
def test_what_avro_lacks_is_named(kind: T.DataType, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        avro_schema(T.StructType([T.StructField("field", kind)]), "app", "store", "value")


def frame(**more: str) -> Any:
    types = {"key": "string", "value": "struct<id:bigint,note:string>"} | more
    return SimpleNamespace(columns=list(types), dtypes=list(types.items()), schema={"value": T.StructField("v", VALUE)})


def application() -> Application:
    return Application("app", lambda source: source)  # type: ignore[arg-type, return-value] # it reads nothing


def test_a_struct_is_for_avro_alone() -> None:
    app = application()
    app.store("counts", frame(), value_serde="avro")
    (store,) = app.stores
    assert store.schemas == {"value": avro_schema(VALUE, "app", "counts", "value")}
    for serde in ("json", "protobuf"):
        with pytest.raises(ConfigurationError, match=r"value of its frame is struct.* must be string or binary"):
            application().store("counts", frame(), value_serde=serde)
    with pytest.raises(ConfigurationError, match="value of its frame is struct"):
        application().query("query", frame()).topic("topic")


def test_a_struct_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"its frame has dead letters.*columns="):
        application().store("counts", frame(**dict.fromkeys((*REFUSAL, "topic"), "string")), value_serde="avro")
    with pytest.raises(ConfigurationError, match="must hold bytes"):
        application().store("counts", frame(), value_serde="avro", max_entries=3)


def test_a_frame_with_dead_letters_keeps_their_value() -> None:
    lacks = frame(**dict.fromkeys((*REFUSAL, "topic"), "string"))
    lacks.columns.remove("value")
    with pytest.raises(ConfigurationError, match="keep the column `value`"):
        application().store("counts", lacks)
