"""Python workers are reached over Unix sockets, and the JVM keeps no names of those that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from processor.spark.session import tidy_session
from processor.spark.worker_sockets import DIRECTORY


def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(batches)


def names_kept(spark: SparkSession) -> list[str]:
    jvm = spark._jvm
    field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    field.setAccessible(True)
    return str(jvm.java.lang.String.join("\n", field.get(None))).split("\n")


def test_the_jvm_forgets_the_sockets_that_are_gone(spark: SparkSession) -> None:
    directory = spark.sparkContext.getConf().get(DIRECTORY)
    assert directory is not None
    frame = spark.range(10).mapInArrow(same, "id long")
    numbers = [[row.id for row in frame.collect()] for _ in range(3)]
    assert sum(name.startswith(directory) for name in names_kept(spark)) >= 3, "else there is nothing to forget"
    others = {name for name in names_kept(spark) if name and not name.startswith(directory)}
    tidy_session(spark)
    assert others <= set(names_kept(spark))
    assert not [name for name in names_kept(spark) if name.startswith(directory) and not Path(name).exists()]
    assert [row.id for row in frame.collect()] == numbers[0] == list(range(10))
