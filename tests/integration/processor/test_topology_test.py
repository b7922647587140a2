"""Topologies on real Spark without Kafka: operators, several outputs of a query, queries that feed each other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Count, Reduce
from processor.operators.fold import aggregate
from processor.operators.joins import Lookup, stream_global_table_join
from processor.operators.json_records import FieldType, parse_json, parse_json_table
from processor.operators.table_joins import Side, table_table_join
from processor.testing import Record, TopologyTest
from statehouse.errors import ConfigurationError

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
    titled = stream_global_table_join(visits, Lookup(titles, "page", {"title": "title"}, "no_title", "titles"), "left")
    app.query("titled", titled.withColumn("value", F.col("title"))).topic("titled")
    prices = parse_json_table(app.table("prices"), {"price": FieldType.NUMBER})
    priced = table_table_join(Side(titles, {"title": "title"}), Side(prices, {"price": "price"}), "outer")
    shown = F.to_json(F.struct("title", "price"))
    app.store("pages", priced.withColumn("value", F.when(~F.col("deleted"), shown)))
    # Fed by another query of the application.
    app.store("times-left", aggregate(parse_left(app), Count()))


def parse_left(app: Application):
    return app.stream("left").withColumns({"reason": F.lit(None).cast("string"), "detail": F.lit(None).cast("string")})


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


_GUIDE = Path(__file__).parents[3] / "docs" / "applications.md"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)[:2])
def test_the_guides_applications_can_be_built(spark: SparkSession, tmp_path: Path, block: str):
    module: dict[str, Any] = {}
    exec(block, module)  # noqa: S102 - our own page
    TopologyTest(module["application_id"], module["build"], spark, tmp_path)


def test_the_guides_test_passes(spark: SparkSession, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    module: dict[str, Any] = {}
    exec(blocks[0], module)  # noqa: S102 - our own page
    exec(blocks[-1], module)  # noqa: S102 - same
    module["test_views_are_counted"](spark, tmp_path)
