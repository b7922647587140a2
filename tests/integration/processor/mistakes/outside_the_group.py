"""A column that is neither grouped nor aggregated."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ('"page"', "hint: group by this column too")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    last = clicks(app).groupBy("key").agg(F.col("page").alias("value"))  # mistake
    app.store("last", last)
