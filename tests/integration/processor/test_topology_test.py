"""Topologies on real Spark without Kafka: operators, several outputs of a query, queries that feed each other."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Count, Reduce
from processor.operators.fold import aggregate
from processor.operators.foreign_key_joins import foreign_key_join
from processor.operators.joins import JoinedTable, stream_global_table_join, stream_table_join
from processor.operators.json_records import FieldType, parse_json, parse_json_table
from processor.operators.session_windows import aggregate_sessions
from processor.operators.suppression import Buffer, Suppression, TimeLimit, WindowCloses
from processor.operators.table_joins import Side, table_table_join
from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress_listener import QueryProgressListener, Subscription
from processor.spark.failures import beginning
from processor.testing import Record, TopologyTest
from processor.testing import topology_test as testing
from statehouse.errors import ConfigurationError
from statehouse.keys.composite import SessionKey, WindowKey
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(240)
BEGAN_MS = 1_700_000_000_000


def visit(key: str | None, page: str, second: int) -> Record:
    return Record(key, f'{{"page":"{page}"}}', BEGAN_MS + second * 1_000)


def build(app: Application) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
    titles = parse_json_table(app.global_table("titles"), {"title": FieldType.TEXT})
    leaving = Reduce(lambda _state, row: None if row["page"] == "bye" else row, first=dict)
    latest = app.query("latest", aggregate(visits, leaving))
    latest.store("latest-page")
    latest.topic("left", where=F.col("value").isNull(), columns={"value": F.lit("gone")})
    app.store("visits-per-user", aggregate(visits, Count(), record_cache=False), record_cache=False)
    app.store("recent", visits.withColumn("key", F.col("key").cast("string")), max_entries=2, aggregator=Count())
    titled = stream_global_table_join(
        visits, JoinedTable(titles, "page", {"title": "title"}, "no_title", "titles"), "left"
    )
    app.query("titled", titled.withColumn("value", F.col("title"))).topic("titled")
    prices = parse_json_table(app.table("prices"), {"price": FieldType.NUMBER})
    priced = table_table_join(Side(titles, {"title": "title"}), Side(prices, {"price": "price"}), "outer")
    shown = F.to_json(F.struct("title", "price"))
    app.store("pages", priced.withColumn("value", F.when(~F.col("deleted"), shown)))
    # Fed by another query of the application.
    app.store("times-left", aggregate(parse_left(app), Count()))


def parse_left(app: Application):
    return app.stream("left").withColumns({"reason": F.lit(None).cast("string"), "detail": F.lit(None).cast("string")})


@pytest.mark.feature("streams-tables-global")
@pytest.mark.feature("stream-global-table")
@pytest.mark.feature("table-table-join")
@pytest.mark.feature("store-whose-partitions")
@pytest.mark.feature("tests-application-without")
def test_a_topology_runs_on_records_piped_in(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("app", build, spark, tmp_path, partitions=1)
    topology.pipe("titles", Record("home", '{"title":"Welcome"}'))
    topology.pipe("prices", Record("home", '{"price":1.5}'), Record("cart", '{"price":2}'), Record("x", "no price"))
    topology.pipe("visits", visit("ann", "home", 1), visit("bob", "cart", 2), visit("ann", "cart", 3))
    topology.pipe("visits", visit(None, "cart", 4), Record("bob", "{", BEGAN_MS))
    topology.run()
    assert topology.store("latest-page") == {
        "ann": {"key": "ann", "page": "cart"},
        "bob": {"key": "bob", "page": "cart"},
    }
    assert topology.store("visits-per-user") == {"ann": 2, "bob": 1}
    assert topology.store("recent") == {"ann": 2, "bob": 1}
    assert topology.store("pages") == {"home": {"title": "Welcome", "price": 1.5}, "cart": {"price": 2}}
    assert [record.value for record in topology.records("visits-per-user") if record.key == b"ann"] == [b"1", b"2"]
    titles = sorted((record.key or b"", record.value or b"") for record in topology.records("titled"))
    assert titles == [(b"", b""), (b"ann", b""), (b"ann", b"Welcome"), (b"bob", b"")]
    reasons = Counter((letter.reason, letter.record.key) for letter in topology.dead_letters)
    assert reasons == {("not_json", b"bob"): 4, ("not_json", b"x"): 1, ("null_key", None): 3}, (
        "one for each query that refused it"
    )

    topology.pipe("titles", Record("home", None)).pipe("prices", Record("cart", None))
    topology.pipe("visits", visit("bob", "bye", 5), visit("cid", "home", 6), visit("dan", "home", 7))
    topology.pipe("visits", visit("ann", "home", 8)).run()
    assert set(topology.store("latest-page")) == {"ann", "cid", "dan"}
    assert topology.store("latest-page")["ann"] == {"key": "ann", "page": "home"}
    assert [(left.key, left.value) for left in topology.records("left")] == [(b"bob", b"gone")]
    assert topology.store("times-left") == {"bob": 1}
    assert topology.store("recent") == {"ann": 1, "dan": 1}, "what was displaced counts from 1 again"
    assert topology.store("pages") == {"home": {"price": 1.5}}


def build_totals(app: Application) -> None:
    amounts = parse_json(app.stream("amounts"), {"amount": FieldType.NUMBER})
    by_key = amounts.withColumn("key", F.col("key").cast("string")).groupBy("key")
    kinds = {"sum": F.sum, "min": F.min, "max": F.max, "avg": F.avg}
    all_of_them = F.struct(*(compute("amount").alias(name) for name, compute in kinds.items()))
    app.store("totals", by_key.agg(F.to_json(all_of_them).alias("value")))


@pytest.mark.feature("counts-sums-extremes")
def test_sums_and_extremes_go_on_from_batch_to_batch(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("app", build_totals, spark, tmp_path, partitions=1)

    def pipe(key: str, *amounts: float):
        topology.pipe("amounts", *(Record(key, f'{{"amount":{amount}}}', BEGAN_MS) for amount in amounts))

    pipe("ann", 3, -1.5)
    pipe("bob", 7)
    topology.run()
    bob = {"sum": 7, "min": 7, "max": 7, "avg": 7}
    assert topology.store("totals") == {"ann": {"sum": 1.5, "min": -1.5, "max": 3, "avg": 0.75}, "bob": bob}
    pipe("ann", 4.5)
    topology.run()
    assert topology.store("totals") == {"ann": {"sum": 6, "min": -1.5, "max": 4.5, "avg": 2}, "bob": bob}


def ward(name: str | None) -> str | None:
    return None if name is None else f'{{"ward_name":"{name}"}}'


def patient(name: str, ward: str | None) -> str:
    return json.dumps({"name": name} | ({} if ward is None else {"ward": ward}))


def build_windows(app: Application) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT}).withWatermark("timestamp", "1 minute")
    by_key = visits.withColumn("key", F.col("key").cast("string"))
    counted = F.count("*").cast("string").alias("value")
    minute = timedelta(minutes=1)
    app.window_store("tumbling", by_key.groupBy(F.window("timestamp", "1 minute"), "key").agg(counted), minute)
    hops = by_key.groupBy(F.window("timestamp", "1 minute", "20 seconds"), "key").agg(counted)
    app.window_store("hopping", hops, minute)
    orders = app.stream("orders").withColumn("key", F.col("key").cast("string"))
    orders = orders.withWatermark("timestamp", "1 minute").alias("order")
    near = F.expr(
        "visit.key = order.key AND order.timestamp BETWEEN visit.timestamp AND visit.timestamp + INTERVAL 1 MINUTE"
    )
    for how in ("inner", "leftOuter", "fullOuter"):
        both = (
            by_key.alias("visit")
            .join(orders, near, how)
            .select(
                F.coalesce("visit.key", "order.key").alias("key"),
                F.to_json(F.struct("visit.page", F.col("order.value").cast("string").alias("order"))).alias("value"),
                F.coalesce("order.timestamp", "visit.timestamp").alias("timestamp"),
            )
        )
        app.query(how, both, output_mode="append").topic(how)


@pytest.mark.feature("windowed-stream-stream")
@pytest.mark.feature("tumbling-hopping-windows")
@pytest.mark.long
def test_windows_hop_and_streams_are_joined_within_a_time(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("app", build_windows, spark, tmp_path, partitions=1)
    topology.pipe("visits", visit("ann", "home", 5), visit("ann", "cart", 35), visit("bob", "home", 5))
    topology.pipe("orders", Record("ann", "book", BEGAN_MS + 40_000), Record("cid", "pen", BEGAN_MS))
    topology.run()
    minute, hop = 60_000, 20_000

    def starts(second: int, length: int, step: int) -> list[int]:
        at = BEGAN_MS + second * 1_000
        return [start for start in range(at - at % step - length, at + 1, step) if start <= at < start + length]

    for store, step in (("tumbling", minute), ("hopping", hop)):
        expected = Counter(
            (key, start)
            for key, second in (("ann", 5), ("ann", 35), ("bob", 5))
            for start in starts(second, minute, step)
        )
        found = {
            (
                WindowKey.from_bytes(record.key or b"").key.decode(),
                WindowKey.from_bytes(record.key or b"").start_ms,
            ): int(record.value or b"0")
            for record in topology.records(store)
        }
        assert found == expected, store
    assert len(starts(5, minute, hop)) == 3

    # Past the watermark's delay and the join's width, what met nothing is known to have met nothing.
    for second in (600, 1_200):
        topology.pipe("visits", visit("zoe", "home", second)).pipe(
            "orders", Record("yan", "mug", BEGAN_MS + second * 1_000)
        ).run()
    met = {("ann", "home", "book"), ("ann", "cart", "book")}
    alone, unasked = {("bob", "home", None)}, {("cid", None, "pen")}

    def joined(topic: str) -> set[tuple[str, str | None, str | None]]:
        found = ((record.key or b"", json.loads(record.value or b"")) for record in topology.records(topic))
        rows = {(key.decode(), row.get("page"), row.get("order")) for key, row in found}
        return {row for row in rows if row[0] not in ("zoe", "yan")}

    assert joined("inner") == met
    assert joined("leftOuter") == met | alone
    assert joined("fullOuter") == met | alone | unasked


def build_sessions(app: Application) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
    sessions = aggregate_sessions(visits, Count(), timedelta(seconds=30), merge=add, grace=timedelta(seconds=60))
    app.session_store("sessions", sessions)


@pytest.mark.feature("session-windows-read")
def test_sessions_are_there_while_they_are_open_and_become_one(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("app", build_sessions, spark, tmp_path)

    def after(*visits: tuple[str, int]) -> dict[tuple[str, int, int], int]:
        topology.pipe("visits", *(visit(user, "home", second) for user, second in visits)).run()
        stored = topology.store("sessions")
        return {
            (key, (start - BEGAN_MS) // 1_000, (end - BEGAN_MS) // 1_000): count
            for (key, start, end), count in stored.items()
        }

    assert after(("ann", 0), ("ann", 10), ("ann", 60), ("bob", 5)) == {
        ("ann", 0, 10): 2,
        ("ann", 60, 60): 1,
        ("bob", 5, 5): 1,
    }
    # An event between two sessions makes one of them; the bounds that are no more are deleted.
    assert after(("ann", 35)) == {("ann", 0, 60): 4, ("bob", 5, 5): 1}
    deleted = [record.key for record in topology.records("sessions") if record.value is None]
    assert [SessionKey.from_bytes(key or b"").end_ms - BEGAN_MS for key in deleted] == [10_000, 60_000]
    topology.pipe("visits", Record("ann", '{"page":"home"}', BEGAN_MS + 300_000), Record("cid", "{")).run()
    assert after(("ann", 61)) == {("ann", 0, 60): 4, ("ann", 300, 300): 1, ("bob", 5, 5): 1}, "it had closed"
    assert sorted(letter.reason for letter in topology.dead_letters) == ["late", "not_json"]
    (late,) = (letter.record for letter in topology.dead_letters if letter.reason == "late")
    sent = visit("ann", "home", 61)
    assert (late.key, late.value, late.timestamp_ms) == (b"ann", str(sent.value).encode(), sent.timestamp_ms)


def build_foreign(app: Application) -> None:
    patients = parse_json_table(app.table("patients"), {"name": FieldType.TEXT}, optional={"ward": FieldType.TEXT})
    wards = parse_json_table(app.table("wards"), {"ward_name": FieldType.TEXT})
    for how in ("inner", "left"):
        joined = foreign_key_join(
            Side(patients, {"name": "name"}), Side(wards, {"at": "ward_name"}), F.upper("ward"), how
        )
        shown = F.when(~F.col("deleted"), F.concat_ws("@", "name", "at"))
        app.store(how, joined.withColumn("value", shown), value_serde="string")


@pytest.mark.feature("foreign-key-join")
@pytest.mark.long
def test_a_foreign_key_join_follows_both_tables(spark: SparkSession, tmp_path: Path):
    topology = TopologyTest("app", build_foreign, spark, tmp_path, partitions=1)

    def stores() -> tuple[dict[str, str], dict[str, str]]:
        topology.run()
        return topology.store("inner"), topology.store("left")

    topology.pipe("wards", Record("W1", ward("x-ray"), 1), Record(None, ward("nowhere"), 1), Record("W9", "{", 1))
    topology.pipe("patients", Record("ann", patient("Ann", "w1"), 2), Record("bob", patient("Bob", "w2"), 3))
    topology.pipe("patients", Record("cid", patient("Cid", None), 4), Record("dan", patient("Dan", "w1"), 5))
    matched = {"ann": "Ann@x-ray", "dan": "Dan@x-ray"}
    assert stores() == (matched, matched | {"bob": "Bob", "cid": "Cid"})
    letters = Counter((letter.reason, letter.record.key) for letter in topology.dead_letters)
    assert letters == {("null_key", None): 2, ("not_json", b"W9"): 2}

    # A ward's update and a move out of it in one batch: the key is shown where it went.
    topology.pipe("wards", Record("W1", ward("surgery"), 20), Record("W2", ward("children"), 10))
    topology.pipe("patients", Record("ann", patient("Ann", "w2"), 15))
    after = {"ann": "Ann@children", "bob": "Bob@children", "dan": "Dan@surgery"}
    assert stores() == (after, after | {"cid": "Cid"})
    shown = [(each.key, each.timestamp_ms) for each in topology.records("inner")[2:]]
    assert sorted(shown) == [(b"ann", 15), (b"bob", 10), (b"dan", 20)], "one record a key"

    # A match withdrawn by each side: the ward closes, the patient names an unknown one, none, or leaves.
    topology.pipe("wards", Record("W1", None, 30))
    topology.pipe("patients", Record("ann", patient("Ann", "w7"), 31), Record("bob", patient("Bob", None), 32))
    topology.pipe("patients", Record("cid", None, 33))
    assert stores() == ({}, {"ann": "Ann", "bob": "Bob", "dan": "Dan"})
    gone = {each.key: (each.value, each.timestamp_ms) for each in topology.records("inner")[5:]}
    assert gone == {b"ann": (None, 31), b"bob": (None, 32), b"dan": (None, 30)}, "tombstones"


def test_a_foreign_key_join_that_cannot_be_is_refused(spark: SparkSession, tmp_path: Path):
    def declare(app: Application, how: str, column: str) -> None:
        table = app.table("patients").withColumns({"table_key": F.col("key").cast("string"), "deleted": F.lit(False)})
        foreign_key_join(Side(table, {"a": "value"}), Side(table, {column: "value"}), "topic", how)

    for how, column, reason in (("outer", "b", "must be inner or left"), ("left", "a", "both sides have a: give one")):
        with pytest.raises(ConfigurationError, match=reason):
            TopologyTest("app", partial(declare, how=how, column=column), spark, tmp_path)


def test_columns_of_every_type_come_through_the_operators_unchanged(spark: SparkSession, tmp_path: Path):
    every_type = {
        "flag": F.lit(True),
        "small": F.lit(-3).cast("tinyint"),
        "whole": F.lit(2**40 + 1),
        "ratio": F.lit(0.1),
        "single": F.lit(0.1).cast("float"),
        "price": F.lit("12.50").cast("decimal(10,2)"),
        "day": F.lit("2026-01-31").cast("date"),
        "at": F.timestamp_micros(F.lit(BEGAN_MS * 1000 + 1)),
        "raw": F.unhex(F.lit("00FF")),
        "tags": F.array(F.lit("a"), F.lit(None)),
        "sizes": F.create_map(F.lit("a"), F.lit(1.5)),
        "nested": F.struct(F.lit(1).alias("x"), F.col("page")),
        "absent": F.lit(None).cast("decimal(4,1)"),
    }
    shown = F.to_json(F.struct("page", *every_type), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"})

    def build(app: Application) -> None:
        events = parse_json(app.stream("visits"), {"page": FieldType.TEXT}).withColumns(every_type)
        titles = parse_json_table(app.table("titles"), {"title": FieldType.TEXT})
        joined = stream_table_join(
            events, JoinedTable(titles, "page", {"title": "title"}, "no_title", "titles"), "left"
        )
        app.query("before", events.withColumn("value", shown)).topic("plain")
        app.query("after", joined.withColumn("value", shown)).topic("joined")
        app.store("folded", aggregate(events, Reduce(lambda state, _row: state)))

    topology = TopologyTest("app", build, spark, tmp_path)
    topology.pipe("visits", visit("ann", "home", 1), visit(None, "cart", 2)).run()
    plain, joined = ({record.key: record for record in topology.records(name)} for name in ("plain", "joined"))
    assert len(plain) == 2
    assert joined == plain
    value = plain[b"ann"].value
    assert isinstance(value, bytes)
    assert topology.store("folded")["ann"] == json.loads(value) | {"key": "ann"}


@pytest.mark.feature("updates-key-within")
def test_every_update_needs_an_operator_that_gives_it(spark: SparkSession, tmp_path: Path):
    def native(app: Application) -> None:
        counted = app.stream("visits").groupBy("key").agg(F.count("*").cast("string").alias("value"))
        app.store("counts", counted, record_cache=False)

    def cached(app: Application) -> None:
        visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
        app.store("counts", aggregate(visits, Count()), record_cache=False)

    for nth, wrong in enumerate((native, cached)):
        with pytest.raises(ConfigurationError, match="tell a Python operator record_cache=False too; Spark's native"):
            TopologyTest("app", wrong, spark, tmp_path / str(nth))


def latest_pages(app: Application, most: int) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
    held_back = TimeLimit(timedelta(seconds=10), Buffer(max_records=most))
    app.query("latest", visits, suppress=held_back).store(
        "latest-page", value_serde="string", columns={"value": F.col("page")}
    )


@pytest.mark.long
def test_a_full_buffer_says_why_it_ends_and_a_larger_one_goes_on(spark: SparkSession, tmp_path: Path):
    small = TopologyTest("app", partial(latest_pages, most=2), spark, tmp_path)
    small.pipe("visits", visit("ann", "home", 1), visit("bob", "home", 2), visit("cid", "home", 3), Record("cid", "{"))
    with pytest.raises(StreamingQueryException) as ended:
        small.run()
    reason = "ConfigurationError: a suppress buffer is full: it would hold 3 records"
    assert beginning(ended.value).startswith(f"statehouse.errors.{reason}")

    larger = TopologyTest("app", partial(latest_pages, most=3), spark, tmp_path)
    larger.pipe("visits", visit("ann", "cart", 5), visit("bob", "help", 11), visit(None, "home", 99)).run()
    assert larger.store("latest-page") == {"ann": "cart"}
    assert [letter.reason for letter in larger.dead_letters] == ["not_json", "null_key"]


@pytest.mark.feature("suppress-until-window")
def test_a_window_passes_when_it_closes_with_the_columns_it_had(spark: SparkSession, tmp_path: Path):
    def visits_a_minute(app: Application) -> None:
        visits = app.stream("visits").withColumn("key", F.col("key").cast("string"))
        visits = visits.withWatermark("timestamp", "5 seconds")
        minutes = visits.groupBy(F.window("timestamp", "1 minute"), "key")
        counted = minutes.agg(F.count("*").cast("string").alias("value"), F.max("timestamp").alias("timestamp"))
        closing = WindowCloses(timedelta(seconds=5), Buffer())
        app.query("minutes", counted, suppress=closing).window_store("visits-a-minute", timedelta(minutes=1))

    topology = TopologyTest("app", visits_a_minute, spark, tmp_path)
    first_ms = BEGAN_MS - BEGAN_MS % 60_000
    seconds = (0, 30, 45)  # the minute is over at 40
    topology.pipe("visits", *(visit("ann", "home", second) for second in seconds)).run()
    assert topology.store("visits-a-minute") == {("ann", first_ms): 2}
    assert [record.timestamp_ms - BEGAN_MS for record in topology.records("visits-a-minute")] == [30_000]


def test_what_suppress_cannot_hold_back_is_refused(spark: SparkSession, tmp_path: Path):
    def declare(app: Application, *, until: Suppression, mode: str = "update", drop: str = "offset") -> None:
        app.query("visits", app.stream("visits").drop(drop), output_mode=mode, suppress=until).store("visits")

    limit, closing = TimeLimit(timedelta(0), Buffer()), WindowCloses(timedelta(0), Buffer())
    wrong = {
        "output mode update only": partial(declare, until=limit, mode="append"),
        "lacks timestamp, which": partial(declare, until=limit, drop="timestamp"),
        "lacks window, which": partial(declare, until=closing),
    }
    for reason, build_it in wrong.items():
        with pytest.raises(ConfigurationError, match=reason):
            TopologyTest("app", build_it, spark, tmp_path)


_GUIDE = Path(__file__).parents[3] / "docs" / "applications.md"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)[:-1])
def test_the_guides_applications_can_be_built(spark: SparkSession, tmp_path: Path, block: str):
    module: dict[str, Any] = {}
    exec(block, module)  # noqa: S102 - our own page
    TopologyTest(module["application_id"], module["build"], spark, tmp_path)


def test_the_guides_updates_wait_and_are_counted(spark: SparkSession, tmp_path: Path):
    module: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    exec(next(block for block in blocks if "suppress=" in block), module)  # noqa: S102 - our own page
    topology = TopologyTest(module["application_id"], module["build"], spark, tmp_path)
    metrics = ProcessorMetrics()
    subscription = Subscription(spark, QueryProgressListener(["views"], metrics))
    try:
        assert topology.pipe("views", visit(None, "home", 0)).run().store("views-per-page") == {}
        topology.pipe("views", visit(None, "home", 240), visit(None, "cart", 300)).run()
        assert topology.store("views-per-page") == {"home": 2}

        def held(unit: str) -> float | None:
            labels = {"query": "views", "partition": "0"}
            return metrics.registry.get_sample_value(f"statehouse_processor_suppress_buffer_{unit}", labels)

        row = '{"key":"cart","value":"1","timestamp":"2023-11-14T22:18:20.000000Z"}'
        size = len('{"key":"cart"}') + len(row)
        poll_until(lambda: (held("records"), held("bytes")) == (1, size), 30, "the second batch's progress")
    finally:
        subscription.close()


def test_the_guides_test_passes(spark: SparkSession, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    module: dict[str, Any] = {}
    exec(blocks[0], module)  # noqa: S102 - our own page
    exec(blocks[-1], module)  # noqa: S102 - same
    module["test_views_are_counted"](spark, tmp_path)


@pytest.mark.parametrize("text", ["9007199254740993", "18446744073709551616", '{"a":[1.0,1,"1"]}', "-0.0", "null"])
def test_documents_are_compared_as_they_are_written(text: str):
    shown = testing._shown("json", text.encode())  # a topology for each would take Spark's time
    assert json.dumps(shown) == json.dumps(json.loads(text))


def price(key: str, cents: int | None, seen: str | None, second: int, partition: int = 0) -> Record:
    return Record(key, json.dumps({"cents": cents, "seen": seen}), BEGAN_MS + second * 1_000, partition)


@pytest.mark.feature("json-value-columns")
def test_a_store_s_value_is_made_of_columns(spark: SparkSession, tmp_path: Path):
    def build(app: Application) -> None:
        pages = parse_json_table(
            app.table("pages"), {"title": FieldType.TEXT}, optional={"a.b": FieldType.INTEGER}, key_type=FieldType.TEXT
        )
        app.store("pages", pages, value=["title", "a.b"])
        counts = pages.where("reason IS NULL").groupBy("key").count()
        app.store("counts", counts, value=["count"])

    topology = TopologyTest("columns", build, spark, tmp_path)
    values = {"a": '{"title":"A","a.b":7}', "b": '{"title":"B"}', "c": '{"title":"C"}', "d": "x"}
    topology.pipe("pages", *(Record(key, value, 1_000) for key, value in values.items()), Record("c", None, 1_001))
    topology.run()
    assert topology.store("pages") == {"a": {"title": "A", "a.b": 7}, "b": {"title": "B", "a.b": None}}
    assert topology.store("counts") == {"a": {"count": 1}, "b": {"count": 1}, "c": {"count": 2}}
    assert [(each.record.value, each.reason) for each in topology.dead_letters] == [(b"x", "not_json")]


@pytest.mark.feature("json-value-columns")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value": []}, "must be a list of columns"),
        ({"value": "key"}, "must be a list of columns"),
        ({"value": ["key"], "value_serde": "string"}, "leave value_serde out"),
    ],
)
def test_a_value_that_can_not_be_made_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], said: str
):
    with pytest.raises(ConfigurationError, match=said):
        TopologyTest("columns", lambda app: app.store("s", app.stream("a"), **options), spark, tmp_path)


@pytest.mark.feature("newest-by")
def test_a_store_keeps_the_entry_with_the_greatest_event_time(spark: SparkSession, tmp_path: Path) -> None:
    def build(app: Application) -> None:
        seen = {"seen": FieldType.TEXT, "cents": FieldType.INTEGER}
        prices = parse_json(app.stream("prices"), {}, optional=seen).withColumn("at", F.col("seen").cast("timestamp"))
        value = F.when(F.col("reason").isNull(), F.col("cents").cast("string")).otherwise(F.col("value").cast("string"))
        app.store("price", prices.withColumn("value", value), newest_by="at", value_serde="string")

    test = TopologyTest("prices", build, spark, tmp_path)
    noon, later = "2026-11-28 12:00:00", "2026-11-28 12:00:01.5"
    test.pipe("prices", price("tea", 300, later, 1), price("tea", 250, noon, 2), price("jam", 90, None, 3)).run()
    assert test.store("price") == {"tea": "300"}
    refused = [(letter.reason, letter.record.value) for letter in test.dead_letters]
    assert refused == [("invalid_time", b'{"cents": 90, "seen": null}')], "the source record's value"
    test.pipe("prices", price("tea", 200, noon, 9), price("tea", None, "2026-11-28 13:00:00", 10)).run()
    assert test.store("price") == {}, "the newest one deletes it"
    test.pipe("prices", price("tea", 310, later, 11)).run()
    assert test.store("price") == {}, "what is older doesn't bring it back"
    test.pipe("prices", price("tea", 320, "2026-11-28 14:00:00", 12)).run()
    assert test.store("price") == {"tea": "320"}
    assert test.records("price")[-1].timestamp_ms == BEGAN_MS + 12_000
    with pytest.raises(ConfigurationError, match="newest_by='seen' is a column of string"):
        TopologyTest(
            "texts",
            lambda app: app.store("s", parse_json(app.stream("p"), {"seen": FieldType.TEXT}), newest_by="seen"),
            spark,
            tmp_path,
        )
    with pytest.raises(ConfigurationError, match="newest_by='n' needs the columns topic, partition, offset, timestamp"):
        TopologyTest(
            "counts",
            lambda app: app.store(
                "s",
                app.stream("p").groupBy("key").agg(F.count("*").alias("n"), F.max("value").alias("value")),
                newest_by="n",
            ),
            spark,
            tmp_path,
        )
