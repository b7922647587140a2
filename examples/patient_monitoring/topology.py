"""Patient monitoring: counts heart beats per minute; a minute with a fast pulse near a fever raises an alert.

Three queries, so that none waits for missing input of another one:

- `pulse-counts` shows each minute while it counts, independently of the temperatures.
- `high-pulses` waits until a minute is closed, and passes on the fast minutes.
- `alerts` joins the fast minutes with the fevers.

Run it with `statehouse process examples.patient_monitoring.topology`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.event_time import fill_event_time, read_event_time
from processor.operators.json_records import FieldType, parse_json
from processor.operators.refusals import refuse
from processor.rows import KEY, OFFSET, PARTITION, REASON, RECORD_TIME, TIMESTAMP, TOPIC, VALUE, DeadLetterReason

application_id = "dev-consumer"

PULSES: Final = "pulse-events"
TEMPERATURES: Final = "body-temp-events"
HIGH_PULSES: Final = f"{application_id}-high-pulses-repartition"
PULSE_COUNTS: Final = "pulse-counts"
ALERTS: Final = "alerts"

MINUTE: Final = timedelta(minutes=1)
GRACE: Final = timedelta(seconds=5)
RETENTION: Final = timedelta(hours=6)
FUTURE_BOUND: Final = timedelta(hours=1)
"""How far the time of an event may be ahead of its record's timestamp."""

HIGH_RATE: Final = 100
FEVER_F: Final = 100.4
WITHIN: Final = timedelta(seconds=60)
JOIN_GRACE: Final = timedelta(seconds=10)

FAHRENHEIT, CELSIUS = "F", "C"

# With event times, the broker would delete the closed minutes of a replay of last year's events within minutes. So
# their retention counts from the time of writing, and their values have the event time. Alerts are few, and kept.
_KEPT_FROM_THE_WRITE: Final = {"message.timestamp.type": "LogAppendTime"}
_KEPT: Final = {"retention.ms": "-1"}


def build(app: Application) -> None:
    """Declare the sources, the queries and their outputs."""
    pulses = events(app, PULSES, {})
    counted = per_minute(timed(pulses, KEY))

    counts = app.query("pulse-counts", with_refused(counted, pulses), output_mode="update")
    counts.window_store(
        PULSE_COUNTS,
        MINUTE,
        grace=GRACE,
        retention=RETENTION,
        columns={VALUE: F.col("heart_rate").cast("string")},
        config={"min.insync.replicas": "1"},
    )

    # `pulse-counts` already puts out the dead letters of this topic.
    fast = counted.where(F.col("heart_rate") >= HIGH_RATE)
    closed = {VALUE: F.to_json(F.struct("heart_rate", F.unix_millis(TIMESTAMP).alias("last_beat_ms")))}
    app.query("high-pulses", fast, output_mode="append").topic(HIGH_PULSES, columns=closed, config=_KEPT_FROM_THE_WRITE)

    temperatures = with_known_unit(events(app, TEMPERATURES, {"temperature": FieldType.NUMBER, "unit": FieldType.TEXT}))
    found = with_refused(alerts(high_pulses(app), fevers(temperatures)), temperatures)
    # The join uses the larger time of both sides, as in Kafka Streams: a quiet side doesn't make the other one wait.
    conf = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
    query = app.query("alerts", found, output_mode="append", conf=conf)
    query.topic(ALERTS, config=_KEPT)
    query.store(ALERTS)


def events(app: Application, topic: str, fields: Mapping[str, FieldType]) -> DataFrame:
    """Read a topic of JSON events by patient, with the event's time if it has one; refuse invalid events."""
    records = app.stream(topic).withColumnRenamed(TIMESTAMP, RECORD_TIME)
    parsed = parse_json(records, fields, optional={TIMESTAMP: FieldType.TEXT})
    patient = F.col(KEY).cast("string")
    identified = refuse(
        parsed,
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "an event needs its patient's id as key"),
        (~F.is_valid_utf8(patient), DeadLetterReason.WRONG_TYPE, "the key is no text"),
    )
    return read_event_time(identified.withColumn("sent_time", F.col(TIMESTAMP)), future_bound=FUTURE_BOUND)


def timed(judged: DataFrame, *columns: str) -> DataFrame:
    """Return the usable events, each with these columns and a time."""
    usable = judged.where(F.col(REASON).isNull()).withColumn(KEY, F.col(KEY).cast("string"))
    return fill_event_time(usable.select(*columns, TOPIC, PARTITION, OFFSET, TIMESTAMP, RECORD_TIME))


def with_refused(rows: DataFrame, judged: DataFrame) -> DataFrame:
    """Add the dead letters of the events to a query's rows, because aggregates and joins lose them."""
    refused = judged.where(F.col(REASON).isNotNull())
    letters = refused.select(KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, REASON, "detail")
    return rows.withColumn(KEY, F.col(KEY).cast("binary")).unionByName(letters, allowMissingColumns=True)


def per_minute(beats: DataFrame) -> DataFrame:
    """Count the beats of a patient: `key`, `window`, `heart_rate`, and the time of the last beat."""
    minute = F.window(TIMESTAMP, _seconds(MINUTE))
    return (
        beats.withWatermark(TIMESTAMP, _seconds(GRACE))
        .groupBy(minute, KEY)
        .agg(F.count("*").alias("heart_rate"), F.max(TIMESTAMP).alias(TIMESTAMP))
    )


def high_pulses(app: Application) -> DataFrame:
    """Read the fast minutes back, each at the time of its last beat."""
    fields = {"heart_rate": FieldType.INTEGER, "last_beat_ms": FieldType.INTEGER}
    parsed = parse_json(app.stream(HIGH_PULSES), fields)
    return parsed.select(
        F.col(KEY).cast("string").alias("patient"),
        "heart_rate",
        F.timestamp_millis("last_beat_ms").alias("pulse_time"),
    ).withWatermark("pulse_time", _late_after())


def with_known_unit(temperatures: DataFrame) -> DataFrame:
    """Refuse temperatures in another unit than F and C."""
    unknown = ~F.col("unit").isin(FAHRENHEIT, CELSIUS)
    return refuse(temperatures, (unknown, "unknown_unit", f"the unit must be {FAHRENHEIT} or {CELSIUS}"))


def fevers(temperatures: DataFrame) -> DataFrame:
    """Return the temperatures that are too high, as they were sent."""
    degrees = F.col("temperature")
    fahrenheit = F.when(F.col("unit") == FAHRENHEIT, degrees).otherwise(degrees * 9 / 5 + 32)
    high = timed(temperatures, KEY, "temperature", "unit", "sent_time").where(fahrenheit > FEVER_F)
    return high.withColumnRenamed(TIMESTAMP, "temp_time").withWatermark("temp_time", _late_after())


def alerts(high: DataFrame, feverish: DataFrame) -> DataFrame:
    """Join fast minutes with fevers near them; an alert's time is the later one's."""
    near = F.expr(f"INTERVAL {_seconds(WITHIN)}")
    apart = (F.col("temp_time") >= F.col("pulse_time") - near) & (F.col("temp_time") <= F.col("pulse_time") + near)
    met = high.join(feverish, (F.col("patient") == F.col(KEY)) & apart)
    # A temperature without its own time is shown with the time that it was given.
    given = F.date_format("temp_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    value = F.format_string(
        '{"heart_rate":%d,"body_temp":{"timestamp":"%s","temperature":%s,"unit":"%s"}}',
        "heart_rate",
        F.coalesce("sent_time", given),
        _shortest("temperature"),
        "unit",
    )
    return met.select(KEY, value.alias(VALUE), F.greatest("pulse_time", "temp_time").alias(TIMESTAMP))


def _late_after() -> str:
    """Return the delay of the join's watermarks.

    An event is joined until stream time has passed its time by the join's width and grace. Spark treats an event
    exactly as old as the watermark as late; Kafka Streams doesn't.
    """
    return f"{(WITHIN + JOIN_GRACE) // timedelta(milliseconds=1) + 1} milliseconds"


def _seconds(duration: timedelta) -> str:
    return f"{duration // timedelta(seconds=1)} seconds"


def _shortest(number: str) -> Column:
    """Write a number as stores hold it: whole ones without a fraction."""
    column = F.col(number)
    is_whole = (column == F.floor(column)) & (F.abs(column) < 1e16)
    return F.when(is_whole, column.cast("bigint").cast("string")).otherwise(column.cast("string"))
