"""Rows that come to the sink in every way: shuffled by an aggregate and as they are read, cached and each one."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor import counters

application_id = "every-way"

EACH: Final = "each"
LATEST: Final = "latest"


def build(app: Application) -> None:
    """Declare the counters, each event by its key, and the latest one of each key; values have the event's offset."""
    counters.build(app)
    ticks = app.stream(counters.EVENTS)
    number = F.col("value").cast("string").cast("long").alias("number")
    seen = ticks.withColumn("value", F.to_json(F.struct("offset", number)))
    app.store(EACH, seen, record_cache=False)
    app.store(LATEST, seen)
