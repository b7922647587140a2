"""A join with a frame that isn't parsed as a table."""

from __future__ import annotations

from processor.application import Application
from processor.operators.joins import JoinedTable, stream_table_join
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"
EXPECTED = ("no column 'table_key'", "parse_json_table(...)")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    titles = JoinedTable(app.table("pages"), "page", {"title": "value"}, "no_title", "pages")
    titled = stream_table_join(clicks(app), titles)  # mistake
    app.store("titles", titled.selectExpr("user AS key", "title AS value"))
