"""A column with a typo, in a column of an output."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'titel'", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    query = app.query("clicks", clicks(app))
    query.topic("titles", columns={"value": F.col("titel")})  # mistake
