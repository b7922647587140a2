"""Stores of a live fleet as Arrow tables, and as DataFrames of Spark with filters pushed down or not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from statehouse.client import Client
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.serdes import SERDES
from tests.support.fleet import STORE, ServerProcess, is_answered_by_active
from tests.support.kafka import produce_placed
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.stores_fleet import BEGIN_MS, MINUTE_MS, StoresFleet

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
BEGIN: Final = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)
AGES: Final = {-3: 30, -1: 10, 0: 0, 2: 20, 400: 4_000}
PEOPLE: Final = {"ann": 12, "bob": 3, "cat": 5, "dan": 1}


@dataclass(frozen=True)
class Live:
    """A fleet whose stores have entries, and how often its nodes were asked for pages."""

    fleet: StoresFleet
    nodes: list[ServerProcess]
    router: ServerProcess
    metrics_ports: list[int]

    def pages(self) -> int:
        """Return how many pages nodes have read, each of one partition."""
        counted = "statehouse_node_read_duration_seconds_count"
        queries = ("all", "range", "prefix", "scan_windows", "scan_sessions")
        return sum(round(scrape(port).value(counted, query=query)) for port in self.metrics_ports for query in queries)


@pytest.fixture(scope="module")
def live(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with StoresFleet(kafka.bootstrap, f"frames-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("frames")) as fleet:
        fleet.add_store("ages", key_serde="long", value_serde="long")
        long = SERDES["long"].parse
        produce_placed(
            fleet.bootstrap,
            fleet.stores["ages"].changelog_topic,
            (
                (partition_for(long(str(key)), fleet.partitions), long(str(key)), long(str(age)), BEGIN_MS)
                for key, age in AGES.items()
            ),
        )
        ports = [free_port(), free_port()]
        # The program in front of a node tells its reads by and by; Python counts each of its own immediately.
        nodes = [
            fleet.node(name, metrics_port=port, engine="python") for name, port in zip(("n1", "n2"), ports, strict=True)
        ]
        router = fleet.router()
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n2", ("n1",)))
        fleet.wait_running(nodes, 120)
        poll_until(lambda: all(is_answered_by_active(router, name) for name in PEOPLE), 60, "the router")
        yield Live(fleet, nodes, router, ports)


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.router.target, direct=False) as connected:
        yield connected


def frame(spark: SparkSession, live: Live, store: str, **options: object) -> DataFrame:
    read = spark.read.format("statehouse").option("router", live.router.target).option("store", store)
    return read.options(**{name.rstrip("_"): str(value) for name, value in options.items()}).load()


@pytest.mark.feature("store-arrow-table")
def test_each_kind_of_store_is_a_table(live: Live, client: Client) -> None:
    people = client.to_arrow(STORE)
    rows = people.to_pylist()
    assert {row["key"]: json.loads(row["value"]) for row in rows} == {name: {"count": n} for name, n in PEOPLE.items()}
    positions = {stamp.partition: stamp.position for page in client.pages(STORE) for stamp in page.replicas}
    for row in rows:
        assert row["timestamp"] == BEGIN
        assert (row["partition"], row["position"]) == (live.fleet.partition_of(row["key"]), positions[row["partition"]])

    clicks = client.to_arrow("clicks", from_ms=BEGIN_MS + 1).to_pylist()
    assert [(row["key"], row["value"], row["start"], row["end"], row["sequence"]) for row in clicks] == [
        (name, "1", BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=2), 0)
        for name in sorted(("ann", "bob"), key=lambda name: (live.fleet.partition_of(name), name))
    ]
    (visit,) = client.to_arrow("visits").to_pylist()
    assert (visit["start"], visit["end"], visit["value"]) == (BEGIN, BEGIN + timedelta(seconds=5), "3 pages")
    (price,) = client.to_arrow("prices", key="ann").to_pylist()
    assert (price["value"], price["timestamp"].timestamp()) == ("9", 1_700_000_002)
    (price,) = client.to_arrow("prices", as_of_ms=1_700_000_001_500).to_pylist()
    assert price["value"] == "12"
    ages = client.to_pandas("ages")
    assert dict(zip(ages["key"], ages["value"], strict=True)) == AGES


@pytest.mark.feature("store-arrow-table")
def test_a_key_asks_one_partition_and_a_store_all(live: Live, client: Client) -> None:
    before = live.pages()
    assert client.to_arrow(STORE, key="cat", value_type=pa.struct({"count": pa.int64()}))["value"].to_pylist() == [
        {"count": PEOPLE["cat"]}
    ]
    after = live.pages()
    assert after - before == 1
    client.to_arrow(STORE)
    assert live.pages() - after == live.fleet.partitions


@pytest.fixture(params=["true", "false"], ids=["pushed", "not pushed"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    assert spark.conf.get(PUSHDOWN) == "true", "our sessions push filters down"
    spark.conf.set(PUSHDOWN, request.param)
    yield spark
    spark.conf.set(PUSHDOWN, "true")


@pytest.mark.feature("store-live-dataframe")
def test_a_store_is_a_frame(spark: SparkSession, live: Live) -> None:
    people = frame(spark, live, STORE, value_schema="count BIGINT")
    assert people.schema.simpleString() == (
        "struct<key:string,value:struct<count:bigint>,timestamp:timestamp,partition:int,position:bigint>"
    )
    assert people.rdd.getNumPartitions() == live.fleet.partitions
    assert {row.key: row["count"] for row in people.select("key", "value.count").collect()} == PEOPLE
    assert people.where("key = 'ann'").collect()[0].value["count"] == PEOPLE["ann"]
    assert people.count() == len(PEOPLE), "a frame may be used again"


@pytest.mark.feature("store-live-dataframe")
def test_filters_find_the_same_whether_they_are_pushed_down_or_not(session: SparkSession, live: Live) -> None:
    def found(store: str, condition: Column) -> set[Any]:
        return {row.key for row in frame(session, live, store, pushdown=True).where(condition).collect()}

    key = F.col("key")
    for condition, keys in (
        (key == 2, {2}),
        (key == 3, set()),
        (key.isin(-3, 0, 7), {-3, 0}),
        (key.between(-1, 2), {-1, 0, 2}),
        ((key < 0) & (F.col("value") > 10), {-3}),
        ((key > 2) | (F.col("value") == 0), {400, 0}),
    ):
        assert found("ages", condition) == keys, condition
    assert found("clicks", (F.col("start") > F.lit(BEGIN)) & key.startswith("b")) == {"bob"}

    is_pushed = session.conf.get(PUSHDOWN) == "true"
    place = live.fleet.partition_of("ann")
    for condition, keys in (
        (key == "cat", {"cat"}),
        (F.col("partition") == place, {name for name in PEOPLE if live.fleet.partition_of(name) == place}),
    ):
        before = live.pages()
        assert found(STORE, condition) == keys
        assert live.pages() - before == (1 if is_pushed else live.fleet.partitions), condition


def test_spark_keeps_a_query_s_filters_at_the_frame(spark: SparkSession, live: Live) -> None:
    """Why filters are pushed down frame by frame. If this fails with a newer Spark, the option may be on by default."""
    people = frame(spark, live, STORE, pushdown=True)
    assert people.where("key = 'ann'").count() == 1
    assert people.count() == 1 < len(PEOPLE)
    both = people.where("key = 'ann'").union(people.where("key = 'bob'"))
    assert len({row.key for row in both.collect()}) == 1, "the last one's filters count for both"


@pytest.mark.feature("store-live-dataframe")
def test_options_read_less_without_a_filter(spark: SparkSession, live: Live) -> None:
    def keys(store: str, **options: object) -> set[Any]:
        return {row.key for row in frame(spark, live, store, **options).collect()}

    before = live.pages()
    assert keys(STORE, key="bob") == {"bob"}
    assert live.pages() - before == 1
    assert keys("ages", from_=-1, to=2) == {-1, 0, 2}
    assert keys(STORE, prefix="c", max_lag=0) == {"cat"}
    assert keys(STORE, from_="bob", to="cat", raw=True) == {b"bob", b"cat"}
    assert keys("clicks", to_ms=BEGIN_MS - MINUTE_MS) == set()


def test_a_schema_may_be_given(spark: SparkSession, live: Live) -> None:
    read = spark.read.format("statehouse").option("router", live.router.target).option("store", STORE)
    people = read.schema("value map<string, int>, key string").load()
    assert people.where("key = 'dan'").collect() == [({"count": 1}, "dan")]
    with pytest.raises(Exception, match="no column 'score'; it has key, value, timestamp, partition, position"):
        read.schema("score int").load().collect()


def test_the_plan_shows_what_was_pushed(spark: SparkSession, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    frame(spark, live, STORE, pushdown=True).where("key = 'ann'").explain("formatted")
    plan = capsys.readouterr().out
    assert "PushedFilters: [EqualTo(key,ann)]" in plan


@pytest.mark.feature("store-live-dataframe")
def test_what_is_wrong_is_said_before_anything_is_read(spark: SparkSession, live: Live) -> None:
    for store, options, message in (
        ("elsewhere", {}, "no store 'elsewhere'; there are: ages, clicks, counts, prices, visits"),
        (STORE, {"kye": "a"}, "no option 'kye'"),
        (STORE, {"token": "abc"}, "give token_file"),
        (STORE, {"router": "127.0.0.1:1"}, "127.0.0.1:1 can't be reached"),
    ):
        with pytest.raises(AnalysisException, match=message):
            frame(spark, live, store, **options)
    with pytest.raises(Exception, match="option key='x' of store ages: it is not written as"):
        frame(spark, live, "ages", key="x").collect()
    with pytest.raises(Exception, match="only documents can have another type"):
        frame(spark, live, "ages", value_schema="a INT").collect()
