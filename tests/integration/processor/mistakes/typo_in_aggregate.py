"""A column with a typo, inside an aggregate."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'amnt'", "nearest: amount", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    totals = (
        clicks(app)
        .groupBy("key")
        .agg(
            F.count("*").alias("clicks"),
            F.sum("amnt").alias("total"),  # mistake
        )
    )
    app.store("totals", totals.select("key", F.to_json(F.struct("clicks", "total")).alias("value")))
