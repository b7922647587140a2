"""Two stores of one name."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("store 'clicks' is declared twice", "another name")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    app.store("clicks", clicks(app))
    app.store("clicks", clicks(app).where("amount > 1"))  # mistake
