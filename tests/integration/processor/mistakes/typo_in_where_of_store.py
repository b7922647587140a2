"""A column with a typo, in the condition of an output."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'amountt'", "nearest: amount", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    query = app.query("clicks", clicks(app))
    query.store("large", where=F.col("amountt") > 100)  # mistake
