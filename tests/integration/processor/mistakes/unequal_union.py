"""A union of frames with different columns."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("UNION", "hint: select the same columns")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    frame = clicks(app)
    app.store("all", frame.union(frame.select("key", "value")))  # mistake
