"""Reads from a frame's plan how many rows it makes per key."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame

from processor.rows import VALUE

_CACHED: Final = "statehouse.record_cache"
_NATIVE: Final = ("Aggregate",)


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


def _has_native(plan: Any) -> bool:  # noqa: ANN401 - a plan of the JVM
    if plan.nodeName() in _NATIVE:
        return True
    children = plan.children()
    return any(_has_native(children.apply(index)) for index in range(children.size()))
