"""A column with a typo, in SQL text."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'pge'", "nearest: page", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    app.store("pages", clicks(app).selectExpr("user AS key", "pge AS value"))  # mistake
