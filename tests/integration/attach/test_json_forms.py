"""The JSON of a value of any type reads back as the same value, and no two values have the same JSON."""

from __future__ import annotations

import random
from itertools import combinations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.columns.json_forms import json_value_of, text_of
from processor.attach.columns.mapping import FAILED, EntryMapping, OnEntryError, Rows, entries
from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE, as_it_is
from processor.attach.failed_entries import FailedEntries
from processor.outputs.frames import set_for_a_while
from processor.rows import KEY, REASON, TIMESTAMP, VALUE
from tests.integration.attach.drawn_types import Kind, arrow_of, ddl, drawn_kind, drawn_value, read_json, same

ROWS = 8
AT_ONCE = 50
# The hour that Berlin has twice, and other places where a session's zone shows.
ZONES = ("Europe/Berlin", "UTC", "Asia/Kathmandu")


def check(spark: SparkSession, seed: int, count: int) -> None:
    """Draw so many types, with values of each, and read all back."""
    chance = random.Random(seed)
    kinds = [drawn_kind(chance) for _ in range(count)]
    drawn = [[drawn_value(kind, chance) for _ in range(ROWS)] for kind in kinds]
    table = pa.table(
        {f"c{n}": arrow_of(kind, values) for n, (kind, values) in enumerate(zip(kinds, drawn, strict=True))}
    )
    with set_for_a_while(spark, {"spark.sql.session.timeZone": chance.choice(ZONES)}):
        schema = ", ".join(f"c{n} {ddl(kind)}" for n, kind in enumerate(kinds))
        frame: DataFrame = spark.createDataFrame(table, schema)
        texts = frame.select(
            *(json_value_of(F.col(each.name), each.dataType).alias(each.name) for each in frame.schema.fields)
        ).collect()
        plain = frame.select(
            *(text_of(F.col(each.name), each.dataType).alias(each.name) for each in frame.schema.fields)
        ).collect()
    for number, (kind, values) in enumerate(zip(kinds, drawn, strict=True)):
        found = [row[number] for row in texts]
        for value, text in zip(values, found, strict=True):
            assert same(kind, read_json(kind, text), value), f"seed {seed}: {kind}: {value!r} became {text}"
        keys = [(value, row[number]) for value, row in zip(values, plain, strict=True) if value is not None]
        for (one, key), (other, other_key) in combinations(keys, 2):
            assert same(kind, one, other) or key != other_key, f"seed {seed}: {kind}: {one!r} and {other!r}: {key}"


@pytest.mark.feature("type-key-value")
def test_sixty_types_read_back(spark: SparkSession) -> None:
    check(spark, 1, 60)


@pytest.mark.feature("type-key-value")
@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_types_read_back(spark: SparkSession, thousand: int) -> None:
    for number in range(1_000 // AT_ONCE):
        check(spark, 1_000 * (1 + thousand) + number, AT_ONCE)


def test_the_hour_that_berlin_has_twice_is_two_keys(spark: SparkSession) -> None:
    """A frame that is published in a session of that zone, with a key of two columns."""
    with set_for_a_while(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        hours = spark.sql("SELECT 'Berlin' city, timestamp_seconds(1792888200 + 3600 * id) hour, 1 n FROM range(2)")
        rows = hours.select(F.struct("city", "hour").alias(STATE_KEY), F.struct("n").alias(STATE_VALUE))
        whole = Rows(rows, as_it_is(rows.select(f"{STATE_VALUE}.*").schema))
        keys = {bytes(row[KEY]) for row in entries(whole, EntryMapping()).collect()}
    assert keys == {
        b'{"city":"Berlin","hour":"2026-10-25T00:30:00.000000Z"}',
        b'{"city":"Berlin","hour":"2026-10-25T01:30:00.000000Z"}',
    }


def test_an_expression_that_fails_costs_its_entry(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT named_struct('user', user) _state_key, named_struct('sum', sum, 'count_2', count) _state_value "
        "FROM VALUES ('ann', 3.0D, 2L), ('bob', NULL, 0L), ('eve', 1.0D, 0L) AS t(user, sum, count)"
    )
    whole = Rows(rows, as_it_is(rows.select(f"{STATE_VALUE}.*").schema))
    mean = {"mean": "sum / count_2"}

    def made(mapping: EntryMapping) -> dict[bytes, tuple[bytes | None, str | None]]:
        found = entries(whole, mapping).collect()
        return {bytes(r[KEY]): (None if r[VALUE] is None else bytes(r[VALUE]), r[FAILED]) for r in found}

    assert made(EntryMapping(values=mean)) == {
        b"ann": (b'{"mean":1.5}', None),
        b"bob": (b'{"mean":null}', None),
        b"eve": (None, "mean = sum / count_2"),
    }
    assert made(EntryMapping(values=mean, on_error=OnEntryError.NULL))[b"eve"] == (b'{"mean":null}', None)
    failed = FailedEntries(spark, "means")
    frame = entries(whole, EntryMapping(values=mean)).withColumn(TIMESTAMP, F.current_timestamp()).drop(STATE_KEY)
    failed.count(frame)
    letters = [(bytes(r[KEY]), r[VALUE], r[REASON]) for r in failed.as_dead_letters(frame, repeats=True).collect()]
    assert {reason for key, _, reason in letters if key == b"eve"} == {None, "expression_failed"}
    assert all(value is None for key, value, _ in letters if key == b"eve"), "it leaves the store"
    failed.count(frame)
    again = [row[REASON] for row in failed.as_dead_letters(frame, repeats=True).collect()]
    assert again.count("expression_failed") == 0, "it is told once"


def test_a_small_number_has_no_exponent(spark: SparkSession) -> None:
    kind = Kind("decimal", 38, 20)
    values = [1, -1, 0, 10**20, 10**13 - 1]
    frame = spark.createDataFrame(pa.table({"d": arrow_of(kind, values)}))
    texts = [row[0] for row in frame.select(text_of(F.col("d"), frame.schema["d"].dataType)).collect()]
    assert texts == [
        "0." + "0" * 19 + "1",
        "-0." + "0" * 19 + "1",
        "0." + "0" * 20,
        "1." + "0" * 20,
        "0.0000000" + "9" * 13,
    ]
