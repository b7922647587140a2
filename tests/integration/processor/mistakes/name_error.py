"""A name of Python's that isn't there."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("NameError: name 'sond' is not defined", "nearest: sound", "hint: correct this line")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    sound = clicks(app).where("amount > 0")
    app.store("sound", sound)
    app.query("clicks", sond).store("clicks")  # type: ignore[name-defined] # noqa: F821 # mistake
