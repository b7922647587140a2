"""The reason of refusals, of a frame that nobody has parsed."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application

application_id = "mistakes"
EXPECTED = ("no column 'reason'", "hint: parse_json(...)")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    sound = app.stream("clicks").where(F.col("reason").isNull())  # mistake
    app.store("sound", sound)
