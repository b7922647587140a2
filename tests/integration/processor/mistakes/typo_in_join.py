"""The column that a join looks up, with a typo."""

from __future__ import annotations

from processor.application import Application
from processor.operators.joins import JoinedTable, stream_global_table_join
from tests.integration.processor.mistakes.clicks import clicks, pages

application_id = "mistakes"
EXPECTED = ("no column 'pgae'", "nearest: page", "hint: use a column that the frame has")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    titles = JoinedTable(pages(app), "pgae", {"title": "title"}, "no_title", "pages")
    titled = stream_global_table_join(clicks(app), titles)  # mistake
    app.store("titles", titled.selectExpr("user AS key", "title AS value"))
