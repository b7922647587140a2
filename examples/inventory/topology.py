"""The items of a database's table, and what is in stock of each category. Run it with `statehouse process`.

Debezium writes the changes of the table `items` to a topic. The store `items` holds the rows that the database has, by
their id. The store `stock-by-category` adds them up. An item that changes its category leaves the old one's sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.cdc_records import parse_cdc
from processor.operators.json_records import FieldType
from processor.operators.order import RecordPosition
from processor.operators.refusals import refuse
from processor.operators.table_aggregates import aggregate_table

application_id = "inventory"

CHANGES: Final = "shop.public.items"
ITEMS: Final = "items"
STOCK: Final = "stock-by-category"


class Stock:
    """Adds up a category's items, and their units."""

    def add(self, state: Any, row: Mapping[str, Any], position: RecordPosition) -> Any:  # noqa: ANN401, ARG002 - JSON
        """Return the sums with this item."""
        sums = state or {"items": 0, "units": 0}
        return {"items": sums["items"] + 1, "units": sums["units"] + row["stock"]}

    def subtract(self, state: Any, row: Mapping[str, Any], position: RecordPosition) -> Any:  # noqa: ANN401, ARG002
        """Return the sums without this item; None if it was the last one."""
        sums = {"items": state["items"] - 1, "units": state["units"] - row["stock"]}
        return sums if sums["items"] else None

    def render(self, state: Any) -> Any:  # noqa: ANN401
        """Return the sums."""
        return state


def build(app: Application) -> None:
    """Declare the table, its store, and the store of its sums."""
    changes = parse_cdc(
        app.table(CHANGES),
        {"name": FieldType.TEXT, "stock": FieldType.INTEGER},
        key={"id": FieldType.INTEGER},
        optional={"category": FieldType.TEXT},
    )
    items = refuse(changes, (F.col("stock") < 0, "negative_stock", "field 'stock' can't be negative"))
    refused = F.col("reason").isNotNull()
    key = F.when(refused, F.col("key")).otherwise(F.col("table_key").cast("binary"))
    app.store(ITEMS, items.withColumn("key", key), value=["name", "category", "stock"])
    # The query of the items already puts out the dead letters.
    app.store(STOCK, aggregate_table(items.where(~refused), "category", Stock()))
