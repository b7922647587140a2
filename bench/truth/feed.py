"""Fills Redis or PostgreSQL with the bank, by Spark's `foreachBatch`: `python -m bench.truth.feed`.

Both are written so that a batch may run again, as `foreachBatch` asks for: totals are set, never added.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any, Final

import redis
from pyspark.sql import DataFrame

from bench.foreach_batch.running import run_until_sigterm
from bench.truth import ACCOUNTS, COUNTERS, QUERY
from bench.truth.libpq import Connection, array, conninfo
from bench.truth.totals import totals
from processor.settings import ProcessorSettings
from processor.spark.kafka_options import topic_options
from processor.spark.session import open_session
from statehouse.local.ports import LOOPBACK
from statehouse.settings import load

_ANSWER_S: Final = 10.0
_ROWS: Final = 1_000
_MERGES: Final = (
    """
    MERGE INTO accounts AS old USING staging AS new ON old.key = new.key
    WHEN MATCHED AND new.balance = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET value = new.balance
    WHEN NOT MATCHED AND new.balance <> 0 THEN INSERT VALUES (new.key, new.balance)
    """,
    """
    MERGE INTO counters AS old USING staging AS new ON old.key = new.key
    WHEN MATCHED THEN UPDATE SET value = new.transfers
    WHEN NOT MATCHED THEN INSERT VALUES (new.key, new.transfers)
    """,
)


def to_redis(port: int, batch: DataFrame, _number: int) -> None:
    """Write a batch: each executor its partitions."""
    batch.foreachPartition(partial(rows_to_redis, port))


def rows_to_redis(port: int, rows: Iterable[Any]) -> None:
    """Write a partition's rows in MULTI and EXEC, so that nobody sees a part of the partition."""
    with redis.Redis(host=LOOPBACK, port=port, socket_timeout=_ANSWER_S) as client:
        pipeline = client.pipeline(transaction=True)
        for row in rows:
            pipeline.set(f"{COUNTERS}:{row.key}", row.transfers)
            if row.balance:
                pipeline.set(f"{ACCOUNTS}:{row.key}", row.balance)
            else:
                pipeline.delete(f"{ACCOUNTS}:{row.key}")
        pipeline.execute()


def to_postgres(port: int, batch: DataFrame, _number: int) -> None:
    """Write a batch: executors fill a staging table, and one transaction takes all of it over."""
    with Connection(conninfo(port), _ANSWER_S) as connection:
        connection.execute("TRUNCATE staging")  # what an attempt before this one has left
        batch.foreachPartition(partial(rows_to_staging, port))
        for each in ("BEGIN", *_MERGES, "COMMIT"):
            connection.execute(each, timeout_s=_ANSWER_S)


def rows_to_staging(port: int, rows: Iterable[Any]) -> None:
    """Write a partition's rows to the staging table; a task that runs again writes the same."""
    left = iter(rows)
    with Connection(conninfo(port), _ANSWER_S) as connection:
        while chunk := list(islice(left, _ROWS)):
            columns = ([str(row[name]) for row in chunk] for name in ("key", "balance", "transfers"))
            connection.execute(
                "INSERT INTO staging SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) "
                "ON CONFLICT (key) DO UPDATE SET balance = excluded.balance, transfers = excluded.transfers",
                [array(each) for each in columns],
                timeout_s=_ANSWER_S,
            )


TARGETS: Final[dict[str, Callable[[int, DataFrame, int], None]]] = {"redis": to_redis, "postgres": to_postgres}


def main() -> None:
    """Run until SIGTERM. Spark's settings are a processor's, by variables."""
    parser = argparse.ArgumentParser(prog="python -m bench.truth.feed", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("port", type=int, help="the server's port")
    parser.add_argument("--source", required=True, help="the topic")
    options = parser.parse_args()
    settings = load(ProcessorSettings, {})
    session = open_session("truth", settings)
    source = session.readStream.format("kafka").options(**topic_options(settings.brokers, options.source)).load()
    run_until_sigterm(
        totals(source)
        .writeStream.outputMode("update")
        .foreachBatch(partial(TARGETS[options.target], options.port))
        .option("checkpointLocation", f"{settings.checkpoint_dir}/{QUERY}")
    )


if __name__ == "__main__":
    main()
