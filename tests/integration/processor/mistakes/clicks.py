"""What the topologies read."""

from __future__ import annotations

from pyspark.sql import DataFrame

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json, parse_json_table


def clicks(app: Application) -> DataFrame:
    """Return clicks: user, page, amount."""
    fields = {"user": FieldType.TEXT, "page": FieldType.TEXT, "amount": FieldType.INTEGER}
    return parse_json(app.stream("clicks"), fields)


def pages(app: Application) -> DataFrame:
    """Return a table of pages, with their title."""
    return parse_json_table(app.global_table("pages"), {"title": FieldType.TEXT})
