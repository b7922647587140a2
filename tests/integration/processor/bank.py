"""The bank as an application: both stores are of one query, so they have its batches in common."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bench.truth import QUERY, SOURCE
from bench.truth.totals import changes
from processor.application import Application
from tests.support.bank import ACCOUNTS, GROUPS, NEWEST, SUMS

application_id = "bank"

PARTITIONS: Final = 8
# So that a test finds each batch in the changelogs afterwards.
_KEPT: Final = {"min.compaction.lag.ms": str(24 * 60 * 60 * 1000)}


def build(app: Application) -> None:
    """Declare the source and the stores. A balance of nothing is no value, which deletes the account."""
    group = F.concat(F.lit("group-"), (F.col("key").cast("int") % GROUPS).cast("string"))
    places = F.array(
        F.struct(F.lit(ACCOUNTS).alias("store"), F.col("key").alias("key"), F.col("change").alias("change")),
        F.struct(F.lit(SUMS).alias("store"), group.alias("key"), F.col("change").alias("change")),
        F.struct(F.lit(SUMS).alias("store"), F.lit(NEWEST).alias("key"), F.lit(0).cast("long").alias("change")),
    )
    each = changes(app.stream(SOURCE)).select(F.explode(places).alias("each"), "timestamp")
    of_keys = each.select("each.*", "timestamp").groupBy("store", "key")
    totals = of_keys.agg(F.sum("change").alias("balance"), F.max("timestamp").alias("newest"))
    balance = F.when(F.col("balance") != 0, F.col("balance"))
    number = F.when(F.col("key") == NEWEST, F.unix_millis("newest")).otherwise(balance)
    # As the serde has it: eight bytes, the highest first.
    bank = app.query(QUERY, totals.withColumn("value", F.unhex(F.lpad(F.hex(number), 16, "0"))))
    for store in (ACCOUNTS, SUMS):
        bank.store(store, value_serde="long", where=F.col("store") == store, partitions=PARTITIONS, config=_KEPT)
