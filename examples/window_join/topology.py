"""Orders and payments that belong together: a stream-stream join over three days, both sides queryable.

Run it with `statehouse process`. Spark joins the streams; joined pairs go to `paid-orders`. Both sides are window
stores with one window per event, kept as long as the other side may still come: before + after + grace.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json
from processor.rows import KEY, OFFSET, REASON, SEQUENCE, TIMESTAMP, VALUE, WINDOW_START

application_id = "window-join"

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
PAID: Final = "paid-orders"
# Retention counts from a record's time, and a replay's are old: the broker would delete them within minutes.
_KEPT: Final = {"retention.ms": "-1"}

BEFORE: Final = timedelta(days=3)
AFTER: Final = timedelta(days=3)
GRACE: Final = timedelta(hours=1)


def build(app: Application, *, in_memory: bool = False) -> None:
    """Declare the sources, a store for each side, and the join."""
    orders = _keyed(parse_json(app.stream(ORDERS), {"amount": FieldType.NUMBER}))
    payments = _keyed(parse_json(app.stream(PAYMENTS), {"method": FieldType.TEXT}))
    for name, side in ((ORDERS, orders), (PAYMENTS, payments)):
        windows = side.withColumns({WINDOW_START: F.col(TIMESTAMP), SEQUENCE: _sequence()})
        app.window_store(
            name,
            windows,
            AFTER,
            retention=BEFORE + AFTER + GRACE,
            grace=GRACE,
            retain_duplicates=True,
            in_memory=in_memory,
        )
    joined = _joined(_good(orders, "amount"), _good(payments, "method"))
    app.query(PAID, joined, output_mode="append").topic(PAID, config=_KEPT)


def _joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
    ordered, paid = orders.alias("o"), payments.alias("p")
    is_near = (F.col("p.at") >= F.col("o.at") - F.expr(f"INTERVAL {BEFORE.days} DAYS")) & (
        F.col("p.at") <= F.col("o.at") + F.expr(f"INTERVAL {AFTER.days} DAYS")
    )
    pair = F.struct(F.col("o.amount"), F.col("p.method"))
    return ordered.join(paid, (F.col("o.key") == F.col("p.key")) & is_near).select(
        F.col("o.key").alias(KEY),
        F.to_json(pair).alias(VALUE),
        F.greatest("o.at", "p.at").alias(TIMESTAMP),
    )


def _keyed(events: DataFrame) -> DataFrame:
    return events.withColumn(KEY, F.col(KEY).cast("string"))


def _good(events: DataFrame, field: str) -> DataFrame:
    """Return the events to join; refused events are dead letters of that side's store."""
    good = events.where(F.col(REASON).isNull() & F.col(KEY).isNotNull())
    return good.select(KEY, field, F.col(TIMESTAMP).alias("at")).withWatermark(
        "at", f"{GRACE.total_seconds():g} seconds"
    )


def _sequence() -> Column:
    """Return a number that distinguishes events with the same key and millisecond."""
    return F.pmod(F.col(OFFSET), F.lit(2**31))
