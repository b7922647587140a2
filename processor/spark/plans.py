"""Reads from a frame's plan how its rows come about."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame

from processor.rows import VALUE

_CACHED: Final = "statehouse.record_cache"
_ROW_BY_ROW: Final = {"Project", "Filter", "SubqueryAlias", "Generate", "MapInArrow", "MapInPandas", "Union"}
_SOURCE: Final = "StreamingRelationV2"


def cached(value: Column) -> Column:
    """Mark the value column of an operator that makes one row per key and batch, the last one."""
    return value.alias(VALUE, metadata={_CACHED: True})


def makes_one_row_a_batch(frame: DataFrame) -> bool:
    """Whether a frame has only the last of a key's updates in a batch.

    True for Spark's native aggregates, and for our Python operators without `record_cache=False`.
    """
    values = [field for field in frame.schema.fields if field.name == VALUE]
    if any(_CACHED in field.metadata for field in values):
        return True
    return _has_native(frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - the plan has no public name in Python


def is_row_by_row(frame: DataFrame) -> bool:
    """Whether each row of a streaming frame comes from one record of Kafka: no state, no join, no shuffle."""
    return _is_row_by_row(frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - same


def is_local(master: str) -> bool:
    """Whether Spark's master means that the driver is all of Spark."""
    return master == "local" or master.startswith("local[")


def as_many_as_cores(frame: DataFrame) -> DataFrame:
    """Return a frame that is read from Kafka with at most as many tasks as there are cores, where that is known.

    A topic's partitions are a task each, and each task calls Python. More of them than cores run one after another.
    """
    context = frame.sparkSession.sparkContext
    if is_local(context.master) and is_row_by_row(frame):
        return frame.coalesce(context.defaultParallelism)
    return frame


def _is_row_by_row(plan: Any) -> bool:  # noqa: ANN401 - a plan of the JVM
    if plan.nodeName() == _SOURCE:
        return bool(plan.sourceName() == "kafka")
    return plan.nodeName() in _ROW_BY_ROW and all(map(_is_row_by_row, _children(plan)))


def _children(plan: Any) -> list[Any]:  # noqa: ANN401 - same
    children = plan.children()
    return [children.apply(index) for index in range(children.size())]


def _has_native(plan: Any) -> bool:  # noqa: ANN401 - a plan of the JVM
    return plan.nodeName() == "Aggregate" or any(map(_has_native, _children(plan)))
