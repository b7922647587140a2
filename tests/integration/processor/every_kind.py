"""A topology with a store of every kind, from native operators of Spark where these give it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application

application_id = "every-kind"

CLICKS: Final = "every-kind-clicks"
VISITORS: Final = "every-kind-visitors"
PAGES: Final = "every-kind-pages"
PRICES: Final = "every-kind-prices"

WINDOW: Final = timedelta(minutes=1)
GRACE: Final = timedelta(seconds=10)
GAP: Final = timedelta(seconds=30)
RETENTION: Final = timedelta(hours=1)
MAX_ENTRIES: Final = 10


def build(app: Application) -> None:
    """Declare the stores: clicks have a user as key and a page as value."""
    clicks = app.stream(CLICKS).withColumn("key", F.col("key").cast("string")).withWatermark("timestamp", "10 seconds")
    latest = clicks.select("key", "value", "timestamp")
    app.window_store(
        "clicks-per-minute",
        counted(clicks.groupBy(F.window("timestamp", "1 minute"), "key")),
        WINDOW,
        grace=GRACE,
        retention=RETENTION,
    )
    app.session_store(
        "visits",
        counted(clicks.groupBy(F.session_window("timestamp", "30 seconds"), "key")),
        inactivity_gap=GAP,
        grace=GRACE,
        retention=RETENTION,
    )
    app.versioned_store("pages-over-time", latest, RETENTION, value_serde="string")
    app.store("last-page", latest, value_serde="string", logging=False)
    visits = app.stream(VISITORS).withColumn("key", F.col("key").cast("string"))
    app.store(
        "last-visitors",
        counted(visits.groupBy("key"), F.max("timestamp").alias("timestamp")),
        max_entries=MAX_ENTRIES,
    )
    app.global_store("pages", PAGES, value_serde="string")
    app.source_store("prices", PRICES)


def counted(groups: DataFrame, *more: DataFrame) -> DataFrame:
    """Count a group's rows; as text a number is a JSON document."""
    return groups.agg(F.count("*").cast("string").alias("value"), *more)
