"""Every operator and every output takes any frame, or names the column that it lacks and what makes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import processor.operators as room
from processor.application import Application
from processor.operators.aggregators import Count
from processor.operators.cdc_records import parse_cdc
from processor.operators.event_time import fill_event_time, read_event_time
from processor.operators.fields.types import FieldType
from processor.operators.fold import aggregate
from processor.operators.foreign_key_joins import foreign_key_join
from processor.operators.joins import (
    JoinedTable,
    global_table_aggregate,
    stream_global_table_join,
    stream_table_join,
)
from processor.operators.json_records import parse_json, parse_json_table
from processor.operators.registry_records import parse_avro, parse_avro_table, parse_protobuf, parse_protobuf_table
from processor.operators.session_windows import aggregate_sessions
from processor.operators.suppression import Buffer, TimeLimit, WindowCloses
from processor.operators.table_aggregates import aggregate_table
from processor.operators.table_joins import Side, table_table_join
from processor.operators.text_records import parse_text
from processor.rows import REFUSAL
from statehouse.errors import ConfigurationError
from statehouse.serdes.plugins import SerdeOptions

TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "record_time": "timestamp",
    "reason": "string",
    "detail": "string",
    "table_key": "string",
    "deleted": "boolean",
    "window": "struct<start:timestamp,end:timestamp>",
    "window_start": "timestamp",
    "session_start": "timestamp",
    "session_end": "timestamp",
    "sequence": "int",
    "name": "string",
    "at": "string",
}
FIELDS: Final = {"name": FieldType.TEXT}
TABLE: Final = ("table_key", "deleted")
GAP: Final = timedelta(seconds=5)
DAY: Final = timedelta(days=1)
Use = Callable[[DataFrame], DataFrame | None]


@dataclass(frozen=True)
class Case:
    """What takes a frame, the columns that it needs, and those that people choose for it."""

    use: Use
    needs: Collection[str] = ()
    chosen: Collection[str] = ()


def joined(table: DataFrame) -> JoinedTable:
    return JoinedTable(table, on="name", columns={"other": "name"}, missing="no_row", name="names")


def sided(frame: DataFrame) -> Side:
    return Side(frame, {"left": "name"})


def other_side(frame: DataFrame) -> Side:
    return Side(sound(frame, "table_key", "deleted", "name"), {"right": "name"})


def sound(frame: DataFrame, *columns: str) -> DataFrame:
    """Return a frame with these columns of their own, made of another frame's session and rows."""
    return frame.select(*(F.lit(None).cast(TYPES[name]).alias(name) for name in columns))


def table_of(frame: DataFrame) -> JoinedTable:
    return joined(sound(frame, "table_key", "deleted", "name"))


def events_of(table: DataFrame) -> DataFrame:
    return sound(table, "key", "value", "name")


def merged(earlier: Any, later: Any) -> Any:
    return earlier + later


def output(declare: Callable[[Application, DataFrame], object]) -> Use:
    """Return what declares an output with a frame."""

    def use(frame: DataFrame) -> None:
        declare(Application("app", lambda _source: frame), frame)

    return use


REGISTRY: Final = SerdeOptions()
IN_PLACE: Final = ("topic", "partition", "offset")
OPERATORS: Final = {
    "parse_text": Case(parse_text, ("key", "value")),
    "parse_json": Case(partial(parse_json, fields=FIELDS), ("value",)),
    "parse_json_table": Case(partial(parse_json_table, fields=FIELDS), ("key", "value")),
    "parse_avro": Case(partial(parse_avro, fields=FIELDS, registry=REGISTRY), ("value",)),
    "parse_avro_table": Case(partial(parse_avro_table, fields=FIELDS, registry=REGISTRY), ("key", "value")),
    "parse_protobuf": Case(partial(parse_protobuf, fields=FIELDS, registry=REGISTRY), ("value",)),
    "parse_protobuf_table": Case(partial(parse_protobuf_table, fields=FIELDS, registry=REGISTRY), ("key", "value")),
    "parse_cdc": Case(partial(parse_cdc, fields=FIELDS, key=FIELDS), ("key", "value")),
    "parse_cdc, key_from_row": Case(partial(parse_cdc, fields=FIELDS, key=FIELDS, key_from_row=True), ("value",)),
    "read_event_time": Case(partial(read_event_time, text="at"), ("record_time",), ("at",)),
    "read_event_time, from timestamp": Case(read_event_time, ("record_time", "timestamp")),
    "fill_event_time": Case(fill_event_time, (*IN_PLACE, "timestamp", "record_time")),
    "aggregate": Case(partial(aggregate, aggregator=Count()), ("key",)),
    "aggregate_sessions": Case(partial(aggregate_sessions, aggregator=Count(), gap=GAP, merge=merged), ("key",)),
    "aggregate_table": Case(partial(aggregate_table, group_by="name", aggregator=Count()), TABLE, ("name",)),
    "stream_table_join": Case(lambda frame: stream_table_join(frame, table_of(frame)), (), ("name",)),
    "stream_table_join, table": Case(
        lambda frame: stream_table_join(events_of(frame), joined(frame)), TABLE, ("name",)
    ),
    "stream_global_table_join": Case(lambda frame: stream_global_table_join(frame, table_of(frame)), (), ("name",)),
    "stream_global_table_join, left": Case(
        lambda frame: stream_global_table_join(frame, table_of(frame), "left"), (), ("name",)
    ),
    "global_table_aggregate": Case(
        lambda frame: global_table_aggregate(frame, table_of(frame), Count()), (), ("name",)
    ),
    "table_table_join": Case(lambda frame: table_table_join(sided(frame), other_side(frame)), TABLE, ("name",)),
    "foreign_key_join": Case(lambda frame: foreign_key_join(sided(frame), other_side(frame), "name"), TABLE, ("name",)),
}
OUTPUTS: Final = {
    "store": Case(output(lambda app, frame: app.store("s", frame)), ("key", "value")),
    "store, dead letters": Case(
        output(lambda app, frame: app.store("s", frame)), ("key", "value", *IN_PLACE), ("reason", "detail")
    ),
    "store, value": Case(output(lambda app, frame: app.store("s", frame, value=["name"])), ("key",), ("name",)),
    "store, max_entries": Case(output(lambda app, frame: app.store("s", frame, max_entries=9)), ("key", "value")),
    "store, newest_by": Case(
        output(lambda app, frame: app.store("s", frame, newest_by="timestamp")),
        ("key", "value", *IN_PLACE, "timestamp"),
    ),
    "window_store": Case(
        output(lambda app, frame: app.window_store("s", frame, GAP)), ("key", "value", "window_start")
    ),
    "window_store, window": Case(
        output(lambda app, frame: app.window_store("s", frame, GAP)), ("key", "value"), ("window",)
    ),
    "window_store, duplicates": Case(
        output(lambda app, frame: app.window_store("s", frame, GAP, retain_duplicates=True)),
        ("key", "value", "window_start", "sequence"),
    ),
    "session_store": Case(
        output(lambda app, frame: app.session_store("s", frame)), ("key", "value", "session_start", "session_end")
    ),
    "versioned_store": Case(
        output(lambda app, frame: app.versioned_store("s", frame, DAY)), ("key", "value", "timestamp")
    ),
    "query.topic": Case(output(lambda app, frame: app.query("q", frame).topic("t")), ("key", "value")),
    "query, suppress for a time": Case(
        output(lambda app, frame: app.query("q", frame, suppress=TimeLimit(GAP, Buffer())).store("s")),
        ("key", "value", "timestamp"),
    ),
    "query, suppress until a window closes": Case(
        output(lambda app, frame: app.query("q", frame, suppress=WindowCloses(GAP, Buffer())).store("s")),
        ("key", "value", "timestamp", "window"),
    ),
}
CASES: Final = OPERATORS | OUTPUTS
NEEDED: Final = [(name, column) for name, case in CASES.items() for column in case.needs]


@pytest.fixture(scope="module")
def full(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A stream with every column that has a meaning."""
    schema = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    return spark.readStream.schema(schema).parquet(str(tmp_path_factory.mktemp("rows")))


@pytest.mark.feature("operators-any-frame")
@pytest.mark.parametrize("name", CASES)
def test_columns_of_the_record_and_of_refusals_may_be_missing(full: DataFrame, name: str) -> None:
    case = CASES[name]
    result = case.use(full.select(*case.needs, *case.chosen))
    if result is not None and "fill_event_time" not in name:
        assert set(REFUSAL) <= set(result.columns)


@pytest.mark.feature("operators-any-frame")
@pytest.mark.parametrize(("name", "column"), NEEDED)
def test_a_needed_column_that_is_missing_is_named_with_what_makes_it(full: DataFrame, name: str, column: str) -> None:
    case = CASES[name]
    have = [each for each in (*case.needs, *case.chosen) if each != column]
    with pytest.raises(ConfigurationError) as refused:
        case.use(full.select(*have) if have else full.select("name"))
    before, _, remedy = str(refused.value).rpartition(": ")
    assert re.search(rf"\b{column}\b", before), before
    assert re.search(r"(make|makes|adds|keep|give|take|rename|group by)\b", remedy), remedy


def test_there_is_a_case_for_each_operator() -> None:
    takes_frame = re.compile(r"^def ([a-z]\w+)\(\s*(?:frame: |events: |stream: |table: DataFrame|left: )", re.MULTILINE)
    public = {name for path in Path(room.__path__[0]).glob("*.py") for name in takes_frame.findall(path.read_text())}
    parts = {"bookkept", "require", "refuse", "judged", "with_document", "with_values", "with_decoded"}
    parts |= {"parse_documents", "parse_table_documents", "rows_by_key", "without_null_keys"}
    assert public - parts == {name.partition(",")[0] for name in OPERATORS}
