"""A column with a typo, as an attribute of the frame."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column or method 'usr'", "nearest: user")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    frame = clicks(app)
    app.store("users", frame.select(frame.usr.alias("key"), "value"))  # mistake
