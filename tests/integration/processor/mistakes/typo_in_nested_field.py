"""A field of a struct, with a typo."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("No such struct field `totl`", "total")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    made = clicks(app).select("key", F.struct("user", F.col("amount").alias("total")).alias("of"))
    app.store("totals", made.select("key", F.col("of.totl").cast("string").alias("value")))  # mistake
