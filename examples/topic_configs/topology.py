"""Counts patients' events in a store with its own changelog settings. Run it with `statehouse process`.

The next start applies changed settings to the existing topic; settings that aren't named here stay unchanged.
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
