"""A stream that is sorted, which Spark can't."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("Sorting is not supported", "hint: Spark can't run this as a streaming query")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    rows = clicks(app).orderBy("amount")
    app.store("sorted", rows)  # mistake
