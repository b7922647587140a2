"""What is read back of the stores, at three doors; and what Spark's own reader says."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, TimestampType

from statehouse.client import Client
from tests.integration.attach import models
from tests.integration.attach.models import Entries
from tests.integration.attach.states import State


def scanned(client: Client, store: str) -> Entries:
    return {_bytes(entry.key): json.loads(_bytes(entry.value)) for entry in client.scan(store, raw=True)}


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def by_key(client: Client, store: str, keys: list[bytes]) -> Entries:
    return {key: json.loads(_bytes(client.get(store, key, raw=True).value)) for key in keys}


def by_http(address: str, store: str, keys: list[bytes]) -> Entries:
    found = {}
    with httpx.Client(base_url=f"http://{address}") as http:
        for key in keys:
            shown = base64.urlsafe_b64encode(key).decode()
            answer = http.get(f"/v1/stores/{store}/keys/{shown}", params={"base64_keys": "true"})
            assert answer.status_code == 200, answer.text
            found[key] = answer.json()["value"]
    return found


def by_spark(session: SparkSession, checkpoint: Path, state: State) -> Entries:
    """The state by Spark's own batch reader, in the forms of the page, for values that are as Spark keeps them."""
    session.streams  # noqa: B018 - makes what Spark's RocksDB asks for when it loads state
    options = state.options
    reader = session.read.format("statestore").option("operatorId", options.get("operator", 0))
    if "state_store" in options:
        reader = reader.option("storeName", options["state_store"])
    if "state_variable" in options:
        reader = reader.option("stateVarName", options["state_variable"]).option("flattenCollectionTypes", "false")
    frame = reader.load(str(checkpoint))
    is_map, is_list = "map_value" in frame.columns, "list_value" in frame.columns
    if is_map:
        pairs = frame.select("key", F.explode("map_value").alias("inner", "value"))
        frame = pairs.select(F.struct("key.*", "inner.*").alias("key"), "value")
    elif is_list:
        frame = frame.select("key", F.struct(F.col("list_value").alias("list")).alias("value"))
    unique = StructType(
        [StructField(each.name, numbered(each.dataType)) for each in frame.select("key", "value").schema]
    )
    frame = frame.select(*(F.col(each.name).cast(each.dataType).alias(each.name) for each in unique.fields))
    rows = exact(frame).collect()
    found: Entries = {}
    for row in rows:
        key = row["key"].asDict(recursive=True)
        key_bytes = key_of(frame.schema["key"].dataType, key)
        value = unwrapped(row["value"].asDict(recursive=True)) if row["value"] is not None else {}
        if key_bytes is not None:
            found[key_bytes] = {name: models.form(of(each)) for name, each in value.items() if name != "__dummy__"}
    return found


def numbered(kind: DataType) -> DataType:
    """A struct whose names differ: those that come again with a number."""
    if not isinstance(kind, StructType):
        return kind
    names: list[str] = []
    for name in kind.names:
        again = names.count(name)
        names.append(f"{name}_{again + 1}" if again else name)
    return StructType([StructField(name, each.dataType) for name, each in zip(names, kind.fields, strict=True)])


def unwrapped(value: dict[str, Any]) -> dict[str, Any]:
    inner = value.get("groupState", value.get("value") if list(value) == ["value"] else None)
    return inner if isinstance(inner, dict) else value


def key_of(kind: DataType, key: dict[str, Any]) -> bytes | None:
    if len(key) > 1:
        return models.key_of(**{name: of(each) for name, each in key.items()})
    (only,) = (of(each) for each in key.values())
    if isinstance(only, int):
        return only.to_bytes(8, "big", signed=True)
    if isinstance(only, dict):
        return json.dumps(models.form(only), ensure_ascii=False, separators=(",", ":")).encode()
    return models.plain_key(only)


def of(value: Any) -> Any:
    """A value that `exact` has made, as the models have it."""
    if isinstance(value, dict):
        if set(value) == {"_micros"}:
            micros = value["_micros"]
            return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
        if set(value) == {"_text"}:
            data = value["_text"]
            return None if data is None else bytes(data).decode("utf-8", "surrogateescape")
        return {name: of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [of(each) for each in value]
    return value


def exact(frame: DataFrame) -> DataFrame:
    """Times as microseconds and texts as bytes: PySpark rounds neither."""

    def made(column: Column, kind: DataType) -> Column:
        if isinstance(kind, StringType):
            return F.struct(column.cast("binary").alias("_text"))
        if isinstance(kind, TimestampType):
            return F.struct(F.unix_micros(column).alias("_micros"))
        if isinstance(kind, StructType):
            inner = [made(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
            return F.when(column.isNotNull(), F.struct(*inner))
        if isinstance(kind, ArrayType):
            return F.transform(column, lambda each: made(each, kind.elementType))
        return column

    return frame.select(*(made(F.col(each.name), each.dataType).alias(each.name) for each in frame.schema.fields))
