"""What Spark computes, the same for whatever it fills."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it


def changes(transfers: DataFrame) -> DataFrame:
    """Return what transfers do to accounts: `key`, `change`, and the record's `timestamp`."""
    parts = F.split(F.col("value").cast("string"), ",")
    payer, payee, amount = (parts.getItem(place) for place in range(3))
    both = F.array(_change(payer, -amount.cast("long")), _change(payee, amount.cast("long")))
    each = transfers.select(F.explode(both).alias("each"), "timestamp").select("each.key", "each.change", "timestamp")
    return each.where(F.col("key") != "")


def totals(transfers: DataFrame) -> DataFrame:
    """Return each changed account's balance and number of transfers: `key`, `balance`, `transfers`."""
    return changes(transfers).groupBy("key").agg(F.sum("change").alias("balance"), F.count("*").alias("transfers"))


def _change(account: Any, by: Any) -> Any:  # noqa: ANN401 - pyspark's columns count as untyped
    return F.struct(account.alias("key"), by.alias("change"))
