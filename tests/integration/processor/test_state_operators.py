"""What frames become on real Spark, without Kafka: state operators, their workers, frames without state."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.aggregators import Count
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.spark_plans import is_row_by_row
from processor.spark_queries import set_for_a_while
from processor.state_operators import WITH_PANDAS, settings_to_go_on
from processor.testing import Record, TopologyTest
from processor.worker_memory import keep_modules

pytestmark = pytest.mark.timeout(240)


def build(app: Application) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
    app.store("visits", aggregate(visits, Count()))


def visits(session: SparkSession, directory: Path, settings: dict[str, str], *keys: str) -> dict[str, int]:
    """Start the application anew, give it visits, and return the counts that it writes."""
    with set_for_a_while(session, settings):
        topology = TopologyTest("app", build, session, directory)
    topology.pipe("visits", *(Record(key, b'{"page":"home"}', 1_700_000_000_000) for key in keys)).run()
    assert topology.dead_letters == []
    return topology.store("visits")


def test_a_checkpoint_that_was_made_with_pandas_goes_on(spark: SparkSession, tmp_path: Path):
    assert visits(spark, tmp_path, {WITH_PANDAS: "true"}, "ann", "bob", "ann") == {"ann": 2, "bob": 1}
    settings = settings_to_go_on(spark, str(tmp_path / "checkpoints"))
    assert settings == {WITH_PANDAS: "true"}
    assert visits(spark, tmp_path, settings, "ann") == {"ann": 3}
    odd = tmp_path / "with space, [brackets] and {braces}"
    shutil.copytree(tmp_path / "checkpoints", odd)
    assert settings_to_go_on(spark, str(odd)) == settings


def test_a_new_checkpoint_is_made_without(spark: SparkSession, tmp_path: Path):
    assert settings_to_go_on(spark, str(tmp_path / "absent")) == {}
    assert visits(spark, tmp_path, {}, "ann") == {"ann": 1}
    checkpoints = tmp_path / "checkpoints"
    assert list(checkpoints.glob("*/state/*/_metadata/v2/*"))
    assert settings_to_go_on(spark, str(checkpoints)) == {}
    assert visits(spark, tmp_path, {}, "ann", "bob") == {"ann": 2, "bob": 1}


def test_a_workers_modules_are_no_garbage(spark: SparkSession):
    def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            keep_modules()
            yield pa.record_batch([pa.array([gc.get_freeze_count()])], names=["objects"])

    found = spark.range(1).coalesce(1).mapInArrow(frozen, "objects bigint").collect()
    assert found[0].objects > 10_000
    before = gc.get_freeze_count()
    keep_modules()
    assert gc.get_freeze_count() == before  # this is no worker


def test_frames_whose_rows_come_from_one_record_each_are_known(spark: SparkSession):
    def source(form: str = "kafka") -> DataFrame:
        reader = spark.readStream.format(form)
        options = {"kafka.bootstrap.servers": "unused:1", "subscribe": "events"} if form == "kafka" else {}
        return reader.options(**options).load()

    events = source()
    parsed = parse_json(events, {"page": FieldType.TEXT})
    row_by_row = [
        events,
        parsed,
        parsed.union(parsed).where("page = 'home'"),
        source().select(F.explode(F.array("key", "value"))),
    ]
    static = spark.createDataFrame([("home", "Home")], "page string, title string")
    others = [
        source("rate"),
        aggregate(parsed, Count()),
        parsed.groupBy("page").count(),
        parsed.join(static, "page"),
        parsed.dropDuplicates(["page"]),
        parsed.repartition(2),
        static,
    ]
    assert [is_row_by_row(frame) for frame in row_by_row] == [True, True, True, True]
    assert [is_row_by_row(frame) for frame in others] == [False] * len(others)
