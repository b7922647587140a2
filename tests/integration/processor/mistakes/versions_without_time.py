"""Versions without a time."""

from __future__ import annotations

from datetime import timedelta

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("lacks timestamp",)


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    rows = clicks(app).selectExpr("user AS key", "value")
    app.versioned_store("users", rows, timedelta(days=1))  # mistake
