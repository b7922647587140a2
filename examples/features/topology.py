"""What a model wants to know about each user: sums of their events, and their profile.

Run it with `statehouse process`.

- The query `user-activity` adds up each user's events, and writes the sums to a compacted topic.
- The store `user-features` joins that table with the profiles: it changes when either side does.
- The store `online` has each user's last event by its own time, in whatever order events come. A logout deletes it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json, parse_json_table
from processor.operators.refusals import refuse
from processor.operators.table_joins import Side, table_table_join

application_id = "features"

EVENTS: Final = "user-events"
PROFILES: Final = "profiles"
ACTIVITY: Final = "user-activity"
FEATURES: Final = "user-features"
ONLINE: Final = "online"

KINDS: Final = ("view", "purchase", "logout")
CENTS_MAX: Final = 10_000_000
_SUMS: Final = ("events", "purchases", "spent_cents")


def build(app: Application) -> None:
    """Declare the sources, the table of sums, and both stores."""
    events = judged_events(app)
    declare_online(app, events)

    # The query of the store `online` already puts out the dead letters of the events.
    purchased = F.col("kind") == "purchase"
    sums = (
        events.where(F.col("reason").isNull())
        .groupBy("key")
        .agg(
            F.count("*").alias("events"),
            F.count_if(purchased).alias("purchases"),
            F.coalesce(F.sum(F.when(purchased, F.col("cents"))), F.lit(0)).alias("spent_cents"),
            F.max("timestamp").alias("timestamp"),
        )
    )
    compacted = {"cleanup.policy": "compact"}
    app.query(ACTIVITY, sums.withColumn("value", F.to_json(F.struct(*_SUMS)))).topic(ACTIVITY, config=compacted)

    activity = parse_json_table(app.table(ACTIVITY), dict.fromkeys(_SUMS, FieldType.INTEGER))
    profiles = parse_json_table(app.table(PROFILES), {"country": FieldType.TEXT}, optional={"plan": FieldType.TEXT})
    joined = table_table_join(
        Side(activity, {name: name for name in _SUMS}), Side(profiles, {"country": "country", "plan": "plan"}), "left"
    )
    app.store(FEATURES, joined, value=[*_SUMS, "country", "plan"])


def judged_events(app: Application) -> DataFrame:
    """Read the events; refuse those that can't be used."""
    fields = {"kind": FieldType.TEXT, "at": FieldType.TIMESTAMP}
    return refuse(
        parse_json(app.stream(EVENTS), fields, optional={"cents": FieldType.INTEGER}),
        (F.col("key").isNull(), "null_key", "an event needs its user as key"),
        (~F.col("kind").isin(*KINDS), "unknown_kind", f"field 'kind' must be one of {', '.join(KINDS)}"),
        (~F.col("cents").between(0, CENTS_MAX), "amount_out_of_range", f"field 'cents' must be from 0 to {CENTS_MAX}"),
    )


def declare_online(app: Application, events: DataFrame) -> None:
    """Keep each user's last event by its own time; a logout deletes it."""
    last = events.withColumn("deleted", F.col("kind") == "logout")
    app.store(ONLINE, last, newest_by="at", value=["kind", "at"])
