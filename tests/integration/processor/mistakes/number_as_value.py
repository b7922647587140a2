"""A store's value that isn't serialized."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("value of its frame is bigint", "string or binary")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    totals = clicks(app).groupBy("key").agg(F.sum("amount").alias("value"))
    app.store("totals", totals)  # mistake
