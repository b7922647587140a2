"""A sum of a text."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ('"user" is not a numeric column',)


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    app.store("totals", clicks(app).groupBy("key").sum("user"))  # mistake
