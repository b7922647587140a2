"""How much each card pays within ten minutes, and whether that is suspicious. Run it with `statehouse process`.

The windows slide: one begins every five minutes, so a burst of payments is whole in one of them unless it takes longer
than five minutes. A payment has an id and counts once in a window, however often its producer sends it. A payment that
comes more than ten minutes late is left out of the windows that are closed by then.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.event_time import read_event_time
from processor.operators.json_records import FieldType, parse_json
from processor.operators.refusals import refuse

application_id = "fraud"

PAYMENTS: Final = "payments"
STORE: Final = "card-windows"

WINDOW: Final = timedelta(minutes=10)
SLIDE: Final = timedelta(minutes=5)
GRACE: Final = timedelta(minutes=10)
RETENTION: Final = timedelta(days=1)

COUNT_MAX: Final = 5
CENTS_MAX: Final = 100_000
"""More payments, or more cents, in a window are suspicious."""
PAYMENT_CENTS_MAX: Final = 10_000_000


def build(app: Application) -> None:
    """Declare the source, the windows of each card, and their store."""
    records = app.stream(PAYMENTS).withColumnRenamed("timestamp", "record_time")
    fields = {"id": FieldType.TEXT, "cents": FieldType.INTEGER, "at": FieldType.TEXT}
    payments = refuse(
        read_event_time(parse_json(records, fields), "at"),
        (F.col("key").isNull(), "null_key", "a payment needs its card as key"),
        (
            ~F.col("cents").between(1, PAYMENT_CENTS_MAX),
            "amount_out_of_range",
            f"field 'cents' must be from 1 to {PAYMENT_CENTS_MAX}",
        ),
    )
    refused = F.col("reason").isNotNull()
    sliding = F.window("timestamp", _seconds(WINDOW), _seconds(SLIDE))
    windows = (
        payments.where(~refused)
        .withWatermark("timestamp", _seconds(GRACE))
        .groupBy(sliding, "key")
        .agg(F.collect_set(F.struct("id", "cents")).alias("payments"))
    )
    count = F.size("payments")
    cents = F.aggregate("payments", F.lit(0).cast("bigint"), lambda total, payment: total + payment["cents"])
    judged = windows.withColumns({"count": count, "cents": cents}).withColumn(
        "suspicious", (F.col("count") > COUNT_MAX) | (F.col("cents") > CENTS_MAX)
    )
    value = F.to_json(F.struct("count", "cents", "suspicious")).cast("binary")
    rows = judged.select("window", "key", value.alias("value"))
    dead_letters = payments.where(refused).drop("id", "cents", "at", "record_time")
    app.window_store(
        STORE, rows.unionByName(dead_letters, allowMissingColumns=True), WINDOW, grace=GRACE, retention=RETENTION
    )


def _seconds(duration: timedelta) -> str:
    return f"{duration // timedelta(seconds=1)} seconds"
