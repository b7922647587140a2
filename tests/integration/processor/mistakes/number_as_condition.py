"""A number where a condition belongs."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("BOOLEAN", "BIGINT", "hint: cast the column")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    is_large = F.col("amount") & F.col("user").isNotNull()  # mistake
    app.store("large", clicks(app).where(is_large))
