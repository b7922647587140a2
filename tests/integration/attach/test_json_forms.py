"""Whatever the type, its JSON reads back as the same value, and no two values have the same."""

from __future__ import annotations

import random
from itertools import combinations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.json_forms import json_value_of, text_of
from processor.spark_queries import set_for_a_while
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


def test_sixty_types_read_back(spark: SparkSession) -> None:
    check(spark, 1, 60)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_ten_thousand_types_read_back(spark: SparkSession) -> None:
    for seed in range(10_000 // AT_ONCE):
        check(spark, 1_000 + seed, AT_ONCE)


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
