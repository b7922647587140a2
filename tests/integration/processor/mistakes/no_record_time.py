"""Event times without the record's own timestamp."""

from __future__ import annotations

from processor.application import Application
from processor.operators.event_time import read_event_time
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'record_time'", "withColumnRenamed('timestamp', 'record_time')")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    timed = read_event_time(clicks(app), "page")  # mistake
    app.store("timed", timed)
