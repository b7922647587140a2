"""A column with a typo, as an item of the frame."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'pag'", "nearest: page", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    frame = clicks(app)
    app.store("pages", frame.select(frame["pag"].alias("key"), "value"))  # mistake
