"""An aggregate that would never be emitted."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("append", "watermark", "hint: give the query the other output_mode")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    counts = clicks(app).groupBy("key").count()
    rows = counts.select("key", F.col("count").cast("string").alias("value"))
    app.store("counts", rows, output_mode="append")  # mistake
