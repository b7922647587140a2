"""Python that raises for every record."""

from __future__ import annotations

from functools import partial
from typing import Any

from processor.application import Application
from processor.operators.aggregators import Reduce
from processor.operators.fold import aggregate
from tests.integration.processor.mistakes.clicks import clicks

application_id = "mistakes"


def _added(total: int, row: dict[str, Any]) -> int:
    return total + row["amuont"]  # mistake


def build(app: Application) -> None:
    """Declare a store."""
    app.store("totals", aggregate(clicks(app), Reduce(_added, first=partial(_added, 0))))
