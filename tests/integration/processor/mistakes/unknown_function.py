"""A function that Spark doesn't have."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("Cannot resolve routine `uppper`", "hint: use a function that Spark has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    app.store("pages", clicks(app).selectExpr("user AS key", "uppper(page) AS value"))  # mistake
