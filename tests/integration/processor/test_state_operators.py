"""What frames become on real Spark: state operators, their workers, and frames without state."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.aggregators import Count
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.outputs.frames import set_for_a_while
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from processor.spark.plans import as_many_as_cores, is_row_by_row
from processor.spark.state_operators import NOTE, WITH_PANDAS, settings_to_go_on
from processor.spark.worker_memory import keep_modules
from processor.testing import Record, TopologyTest
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import messages, writing_checksums
from tests.support.kafka import create_topic, produce
from tests.support.operator_metadata import metadata
from tests.support.polling import poll_until

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


@pytest.mark.long
def test_a_new_checkpoint_is_made_without(spark: SparkSession, tmp_path: Path):
    assert settings_to_go_on(spark, str(tmp_path / "absent")) == {}
    assert visits(spark, tmp_path, {}, "ann") == {"ann": 1}
    checkpoints = tmp_path / "checkpoints"
    assert list(checkpoints.glob("*/state/*/_metadata/v2/*"))
    assert settings_to_go_on(spark, str(checkpoints)) == {}
    assert visits(spark, tmp_path, {}, "ann", "bob") == {"ann": 2, "bob": 1}


def test_a_checkpoint_has_no_files_of_checksums_and_goes_on_from_one_that_has(spark: SparkSession, tmp_path: Path):
    with writing_checksums(spark):
        assert visits(spark, tmp_path, {}, "ann") == {"ann": 1}
    older = set(tmp_path.rglob(".*.crc"))
    assert older
    assert visits(spark, tmp_path, {}, "ann", "bob") == {"ann": 2, "bob": 1}
    assert set(tmp_path.rglob(".*.crc")) == older


def test_it_is_decided_once_whatever_else_uses_pandas(spark: SparkSession, tmp_path: Path):
    directory = tmp_path / "with space, [brackets] and {braces}"
    assert settings_to_go_on(spark, str(directory)) == {}
    assert (directory / NOTE).read_text() == "rows"
    written = directory / "query" / "state" / "0" / "_metadata" / "v2"
    written.mkdir(parents=True)
    (written / "0").write_text(metadata("transformWithStateInPandasExec", "aggregates", "rows"))
    (written / ".1.tmp").write_text("")  # of a driver that was killed
    assert settings_to_go_on(spark, str(directory)) == {}
    for no_note in ("", "what?"):
        (directory / NOTE).write_text(no_note)
        assert settings_to_go_on(spark, str(directory)) == {WITH_PANDAS: "true"}
        assert (directory / NOTE).read_text() == "pandas"


def test_a_processor_goes_on_from_an_older_checkpoint(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    application, topic = unique_name("app"), unique_name("visits")
    create_topic(kafka.bootstrap, topic)

    def build(app: Application) -> None:
        app.store("visits", aggregate(parse_json(app.stream(topic), {"page": FieldType.TEXT}), Count()))

    settings = ProcessorSettings(bootstrap=kafka.bootstrap, checkpoint_dir=str(tmp_path))
    note = tmp_path / application / NOTE

    def count_to(expected: int) -> None:
        produce(kafka.bootstrap, topic, [(b"ann", b'{"page":"home"}')])
        processor = Processor(Topology(application, build), settings)
        processor.start()
        try:
            changelog = changelog_topic(application, "visits")
            what = f"count {expected}, {processor.states.queries}"
            poll_until(lambda: b"%d" % expected in [m.value() for m in messages(kafka.bootstrap, changelog)], 90, what)
        finally:
            processor.stop()

    note.parent.mkdir()
    note.write_text("pandas")
    count_to(1)
    note.unlink()
    count_to(2)
    assert note.read_text() == "pandas"


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
    cores = spark.sparkContext.defaultParallelism
    assert f"Repartition {cores}, false" in as_many_as_cores(parsed)._jdf.queryExecution().analyzed().toString()
    assert as_many_as_cores(others[1]) is others[1]
