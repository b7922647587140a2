"""Frames and Spark settings for an application's queries."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from processor.outputs import OutputMode, Query
from processor.spark.versions import Feature, ensure_has

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
# Queries that start in several threads must not take one another's settings for the session's own.
_SETTING: Final = threading.RLock()


def partitioned_frame(query: Query, partition_counts: Mapping[str, int]) -> DataFrame:
    """Return the frame of a query, with `max_entries` or `suppress` applied to each partition if declared.

    The partitions are those of the first output. `partition_counts`: topic -> partition count, for all outputs.

    Raises:
        ConfigurationError: Spark lacks what is declared.

    """
    partition_count = partition_counts[query.outputs[0].topic]
    if query.suppress is None and query.max_entries is None:
        return query.frame
    ensure_has(pyspark.__version__, Feature.ROW_STATE)
    # Without the classes that they extend they can't be imported.
    from processor.operators.workers.lru import lru  # noqa: PLC0415
    from processor.operators.workers.suppress import suppress  # noqa: PLC0415

    if query.suppress is not None:
        return suppress(query.frame, query.suppress, partition_count)
    assert query.max_entries is not None  # noqa: S101 - see above
    return lru(query.frame, query.max_entries, partition_count, query.aggregator)


def query_settings(query: Query, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings for this query only; `chosen`: those that the user has set."""
    # It has nothing to adapt in the sink's plan, whose shuffle has its number of partitions, but makes two jobs of it.
    settings = {} if _ADAPTIVE in chosen else {_ADAPTIVE: "false"}
    if query.max_entries is not None or query.suppress is not None:
        # Spark refuses state operators after an aggregate in update mode, because they could treat its rows as late.
        # Neither of our operators has a watermark, so no row is late for them.
        settings["spark.sql.streaming.statefulOperator.checkCorrectness.enabled"] = "false"
    if query.output_mode is OutputMode.APPEND:
        # Windows that the last events close must not wait for further events.
        settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "true"
    return settings | dict(query.conf)


@contextmanager
def set_for_a_while(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change Spark settings inside the block, where frames are made or queries start; a query copies them then."""
    if not settings:
        yield
        return
    with _SETTING:
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
