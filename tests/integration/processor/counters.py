"""A topology of counters: how many events a key has had, and what their numbers add up to."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application

application_id = "counters"

EVENTS: Final = "ticks"
STORE: Final = "counts"


def build(app: Application) -> None:
    """Declare the store; an event is a number as text. After n events a value says n and the sum of the first n."""
    ticks = app.stream(EVENTS)
    counts = ticks.groupBy("key").agg(
        F.count("*").alias("count"), F.sum(F.col("value").cast("string").cast("long")).alias("sum")
    )
    app.store(STORE, counts.select("key", F.to_json(F.struct("count", "sum")).alias("value")))
