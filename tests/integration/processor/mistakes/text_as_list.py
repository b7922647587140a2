"""A text where a list belongs."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("ARRAY", "STRING", "hint: cast the column")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    words = clicks(app).select("key", F.explode("page").alias("value"))  # mistake
    app.store("words", words)
