"""A window's start that is no timestamp."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("window_start of its frame is string", "timestamp")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    rows = clicks(app).select("key", "value", F.lit("2026-01-01").alias("window_start"))
    app.window_store("hours", rows, timedelta(hours=1))  # mistake
