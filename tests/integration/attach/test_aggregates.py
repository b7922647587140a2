"""Values made of the states of real streaming queries are those that Spark itself makes of the same rows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from processor.attach.columns.json_forms import unique_names
from processor.attach.columns.mapping import state_rows
from processor.attach.columns.state_values import STATE_VALUE, StateValues, finished_by_schema, finished_by_words
from statehouse.errors import ConfigurationError

_INPUT: Final = "u string, m decimal(6,2), w decimal(20,4), i int, d double, b boolean, t timestamp"
_ROWS: Final = [
    "('a', 10.50, 12345678901234.5678, 1, 1.5, true, timestamp'2026-10-25 01:30:00.123456')",
    "('a', 36.00, 0.0001, 7, -2.25, false, timestamp'2026-10-25 02:30:00.654321')",
    "('a', null, null, null, null, null, null)",
    "('b', 1.50, 3.3333, 5, 8.0, true, timestamp'2027-01-01 00:00:00.000001')",
    "('c', null, null, null, null, null, null)",
]
_AGGREGATES: Final = {
    name: name
    for name in (
        "count(*)",
        "count(i)",
        "sum(m)",
        "avg(m)",
        "sum(w)",
        "avg(w)",
        "sum(i)",
        "avg(i)",
        "sum(d)",
        "avg(d)",
        "min(t)",
        "max(t)",
        "max(w)",
        "stddev(d)",
        "stddev_pop(d)",
        "var_samp(d)",
        "var_pop(d)",
        "corr(d, i)",
        "covar_pop(d, i)",
        "covar_samp(d, i)",
        "skewness(d)",
        "kurtosis(d)",
        "first(i)",
        "last(i, true)",
        "any_value(m)",
        "bool_and(b)",
        "bool_or(b)",
        "bit_and(i)",
        "bit_or(i)",
        "bit_xor(i)",
        "max_by(d, i)",
        "min_by(m, i)",
        "count_if(b)",
        "try_sum(i)",
        "try_avg(m)",
        "sum(m) filter (where b)",
        "sum(d) / count(*)",
        "sum(m) + 1",
    )
}
_UNAMBIGUOUS: Final = {
    name: name for name in ("count(*)", "avg(d)", "sum(w)", "avg(w)", "first(i)", "last(t)", "max(w)", "avg(i)")
}
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming.state"


def _state(
    spark: SparkSession, directory: Path, sql: dict[str, str], provider: str = "HDFSBackedStateStoreProvider"
) -> tuple[DataFrame, DataFrame, StructType]:
    """Run the aggregation as a streaming query. Return Spark's results, the rows of the state and its columns."""
    names = [field.split()[0] for field in _INPUT.split(", ")]
    kinds = {field.split()[0]: field.split()[1] for field in _INPUT.split(", ")}
    values = spark.sql(f"values {', '.join(_ROWS)}").toDF(*names)
    rows = values.select(*(F.col(name).cast(kind).alias(name) for name, kind in kinds.items()))
    rows.coalesce(1).write.parquet(str(directory / "in"))
    made = [F.expr(text).alias(name) for name, text in sql.items()]
    read = spark.readStream.schema(rows.schema).parquet(str(directory / "in"))
    before = {name: spark.conf.get(name, None) for name in (_PROVIDER, "spark.sql.shuffle.partitions")}
    spark.conf.set(_PROVIDER, f"{_PACKAGE}.{provider}")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        query = (
            read.groupBy("u")
            .agg(*made)
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(directory / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.processAllAvailable()
        query.stop()
        state = spark.read.format("statestore").load(str(directory / "cp"))
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
    kind = state.schema["value"].dataType
    assert isinstance(kind, StructType)
    batch = spark.read.schema(rows.schema).parquet(str(directory / "in")).coalesce(1).groupBy("u").agg(*made)
    return batch, state_rows(state), kind


def _by_words(spark: SparkSession, kind: StructType, aggregates: dict[str, str], inputs: str) -> StateValues:
    names = unique_names(kind.names)
    return finished_by_words(spark, kind, names, aggregates, inputs, StructType.fromDDL("u string"))


def _by_schema(spark: SparkSession, kind: StructType) -> StateValues:
    return finished_by_schema(spark, kind, unique_names(kind.names))


def _served(rows: DataFrame, values: StateValues) -> DataFrame:
    columns = [values.columns.get(name, F.col(f"{STATE_VALUE}.`{name}`")).alias(name) for name in values.default]
    return rows.select("_state_key.u", *columns)


def _values(frame: DataFrame) -> dict[str, list[str]]:
    return {row[0]: [repr(value) for value in row[1:]] for row in frame.collect()}


@pytest.mark.feature("aggregates-finished-avg")
@pytest.mark.long
@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_named_aggregates_are_what_the_job_would_write(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    batch, rows, kind = _state(spark, tmp_path, _AGGREGATES, provider)
    served = _served(rows, _by_words(spark, kind, _AGGREGATES, _INPUT))
    assert [f.dataType for f in served.schema] == [f.dataType for f in batch.schema]
    expected, got = _values(batch), _values(served)
    assert {u: dict(zip(_AGGREGATES, v, strict=True)) for u, v in got.items()} == {
        u: dict(zip(_AGGREGATES, v, strict=True)) for u, v in expected.items()
    }


@pytest.mark.feature("aggregates-finished-avg")
@pytest.mark.parametrize(
    "provider",
    ["HDFSBackedStateStoreProvider", pytest.param("RocksDBStateStoreProvider", marks=pytest.mark.long)],
)
def test_what_the_schema_says_is_finished_without_a_word(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    batch, rows, kind = _state(spark, tmp_path, _UNAMBIGUOUS, provider)
    served = _served(rows, _by_schema(spark, kind))
    assert served.columns[1:] == ["count", "avg", "sum_2", "avg_2", "first", "last", "max", "avg_3"]
    assert _values(served) == _values(batch)
    assert any("it is one of decimals of at most 11 digits" in each for each in _by_schema(spark, kind).doubts)


@pytest.mark.feature("aggregates-finished-avg")
def test_small_decimals_keep_their_point(spark: SparkSession, tmp_path: Path) -> None:
    sql = {"total": "sum(m)", "mean": "avg(m)"}
    _, rows, kind = _state(spark, tmp_path, sql)
    served = {row.u: row for row in _served(rows, _by_words(spark, kind, sql, "m decimal(6,2)")).collect()}
    assert str(served["a"].total) == "46.50"
    assert served["b"].mean == Decimal("1.50")
    assert (served["c"].total, served["c"].mean) == (None, None)
    with pytest.raises(ConfigurationError, match="the state isn't of these aggregates"):
        _by_words(spark, kind, {"total": "sum(m)"}, "m decimal(6,2)")
    with pytest.raises(ConfigurationError, match=r"collect_list.*can't be finished"):
        _by_words(spark, kind, {"all": "collect_list(m)"}, "m decimal(6,2)")


def test_a_sum_and_a_count_are_no_mean(spark: SparkSession, tmp_path: Path) -> None:
    _, rows, kind = _state(spark, tmp_path, {"total": "sum(d)", "hits": "count(*)", "same": "sum(d)", "mean": "avg(i)"})
    served = {row.u: row for row in _served(rows, _by_schema(spark, kind)).collect()}
    assert _by_schema(spark, kind).default == ["sum", "count", "avg"]
    assert (served["a"]["sum"], served["a"]["count"], served["a"]["avg"]) == (-0.75, 3, 4.0)


def test_what_only_spark_can_read_is_left_out_and_said(spark: SparkSession, tmp_path: Path) -> None:
    _, _, kind = _state(
        spark, tmp_path, {"all": "collect_list(i)", "about": "approx_count_distinct(i)", "n": "count(i)"}
    )
    found = _by_schema(spark, kind)
    assert found.default == ["count"]
    assert any("only Spark can read" in each for each in found.doubts)
