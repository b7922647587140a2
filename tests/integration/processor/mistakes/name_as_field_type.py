"""The name of a type instead of the type."""

from __future__ import annotations

from processor.application import Application
from processor.operators.json_records import parse_json

application_id = "mistakes"
EXPECTED = ("field 'user' has the type 'string'", "FieldType.TEXT")


def build(app: Application) -> None:
    """Declare a store, wrongly."""
    users = parse_json(app.stream("users"), {"user": "string"})  # type: ignore[dict-item] # mistake
    app.store("users", users)
