"""An import of something that isn't installed."""

from __future__ import annotations

import no_such_library  # type: ignore[import-not-found] # mistake

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("No module named 'no_such_library'", "hint: correct this line")


def build(app: Application) -> None:
    """Declare a store."""
    app.store(no_such_library.NAME, clicks(app))
