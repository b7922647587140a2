"""An option that this kind of store doesn't have."""

from __future__ import annotations

from datetime import timedelta

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("unknown retention",)


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    app.store("clicks", clicks(app), retention=timedelta(days=1))  # type: ignore[call-arg] # mistake
