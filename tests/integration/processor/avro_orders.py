"""Orders as JSON become stores of Avro: the application of a test."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json

application_id = "avro-orders"
ORDERS: Final = "avro-orders-in"


def build(app: Application) -> None:
    """Declare a store with values in Avro, and one with keys, too."""
    parsed = parse_json(
        app.stream(ORDERS),
        {"id": FieldType.INTEGER, "user": FieldType.TEXT},
        optional={"note": FieldType.TEXT, "gone": FieldType.TEXT},
    )
    order = F.when(F.col("gone").isNull(), F.struct("id", "note", F.array(F.struct("user")).alias("buyers")))
    orders = app.query("orders", parsed.withColumn("key", F.col("key").cast("string")))
    orders.store("orders", value_serde="avro", columns={"value": order})
    sound = parsed.where(F.col("reason").isNull() & F.col("user").isNotNull())
    counted = sound.groupBy(F.struct("user").alias("key")).agg(F.struct(F.count("*").alias("orders")).alias("value"))
    app.store("per-user", counted, key_serde="avro", value_serde="avro")
