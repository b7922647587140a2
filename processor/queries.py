"""How Spark is told to run a query of an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from processor.operators.lru import lru
from processor.operators.suppress import suppress
from processor.outputs import OutputMode, Query


def partitioned_frame(query: Query, partition_counts: Mapping[str, int]) -> DataFrame:
    """Return a query's frame, bounded or its updates held back if they are to be, each partition's by themselves.

    The partitions are those of the query's first output; `partition_counts` are those of all its outputs, by topic.
    """
    partition_count = partition_counts[query.outputs[0].topic]
    if query.suppress is not None:
        return suppress(query.frame, query.suppress, partition_count)
    if query.max_entries is None:
        return query.frame
    return lru(query.frame, query.max_entries, partition_count, query.aggregator)


def query_settings(query: Query) -> dict[str, str]:
    """Return the settings of Spark that a query needs and others must not have."""
    settings = {}
    if query.max_entries is not None or query.suppress is not None:
        # Spark refuses state operators after an aggregate in update mode, since they could take its rows for late.
        # Neither operator knows a watermark, so that nothing is late for it.
        settings["spark.sql.streaming.statefulOperator.checkCorrectness.enabled"] = "false"
    if query.output_mode is OutputMode.APPEND:
        # What the last events close must not wait for the next ones.
        settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "true"
    return settings | dict(query.conf)


@contextmanager
def set_for_a_while(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of Spark for the queries started meanwhile: each takes a copy when it starts."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, was)
