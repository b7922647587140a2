"""The bank as a Statehouse application: both stores are of one query, so they have its batches in common."""

from __future__ import annotations

import os

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bench.truth import ACCOUNTS, COUNTERS, QUERY
from bench.truth.totals import totals
from processor.application import Application

application_id = os.environ.get("BENCH_APPLICATION_ID", "bench")


def build(app: Application) -> None:
    """Declare the source and the stores; an account without money has no value, which deletes it."""
    balance = F.when(F.col("balance") != 0, F.col("balance").cast("string"))
    bank = app.query(QUERY, totals(app.stream(os.environ["BENCH_SOURCE"])).withColumn("value", balance))
    bank.store(ACCOUNTS, value_serde="string")
    bank.store(COUNTERS, value_serde="string", columns={"value": F.col("transfers").cast("string")})
