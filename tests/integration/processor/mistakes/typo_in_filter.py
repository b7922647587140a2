"""A condition that is made in one line and used in another."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'usr'", "nearest: user", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    is_known = F.col("usr").isNotNull()  # mistake
    known = clicks(app)
    app.store("known", known.where(is_known))
