"""Patients' events counted, in a store whose changelog has settings of its own. Run by `statehouse process`.

Settings that are changed here are applied to the existing topic at the next start; what isn't named is left as it is.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application

application_id = "topic-configs"

EVENTS: Final = "patient-events"
STORE: Final = "counts"
CONFIG: Final = {"segment.bytes": "536870912", "min.cleanable.dirty.ratio": "0.3"}


def build(app: Application) -> None:
    """Declare the source, the count and its store."""
    counts = app.stream(EVENTS).groupBy("key").agg(F.count("*").cast("string").alias("value"))
    app.store(STORE, counts, config=CONFIG)
