"""A column with a typo, to group by."""

from __future__ import annotations

from processor.application import Application
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'yser'", "nearest: user", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    counts = clicks(app).groupBy("yser").count()  # mistake
    app.store("counts", counts.selectExpr("yser AS key", "CAST(count AS STRING) AS value"))
