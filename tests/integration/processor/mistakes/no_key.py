"""A store's frame without a key."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("lacks key", "it has user, value")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    rows = clicks(app).select("user", "value")
    app.store("users", rows)  # mistake
