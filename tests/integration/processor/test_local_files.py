"""Checkpoint files on a local disk, as Spark's driver and executors write them: LocalFiles, through a real JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from processor.application import Application
from processor.operators.aggregators import Count
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.outputs.frames import set_for_a_while
from processor.spark.session import _driver_finds
from processor.testing import Record, TopologyTest
from tests.integration.processor.support import writing_checksums
from tests.support.stalling_disk import stalling_disk

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
OURS: Final = "statehouse.files.LocalFiles"
FORMER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
TAKEN: Final = "org.apache.hadoop.fs.FileAlreadyExistsException"


class Files:
    """A manager of checkpoint files, for those below a folder."""

    def __init__(self, spark: SparkSession, folder: Path, manager: str = OURS) -> None:
        self._jvm: Any = spark._jvm
        self.folder = folder
        configuration = spark._jsc.hadoopConfiguration()
        self.manager = getattr(self._jvm, manager)(self.path(""), configuration)

    def path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"file://{self.folder}/{name}")

    def writer(self, name: str, text: str, *, overwrite: bool = False) -> Any:
        """Begin a file; it is there once the writer is closed."""
        stream = self.manager.createAtomic(self.path(name), overwrite)
        stream.writeBytes(text)
        return stream

    def write(self, name: str, text: str, *, overwrite: bool = False) -> None:
        self.writer(name, text, overwrite=overwrite).close()

    def read(self, name: str) -> str:
        stream = self.manager.open(self.path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path / "checkpoint")


def java_class(error: pytest.ExceptionInfo[Py4JJavaError]) -> str:
    return str(error.value.java_exception.getClass().getName())


def test_a_session_of_ours_has_it(spark: SparkSession) -> None:
    assert spark.conf.get(MANAGER) == OURS
    assert _driver_finds(OURS)
    assert not _driver_finds("statehouse.files.Absent")


def test_a_file_is_there_when_its_writer_is_closed_and_nothing_else_is(files: Files) -> None:
    writer = files.writer("offsets/1", "one")
    writer.flush()
    assert not files.manager.exists(files.path("offsets/1"))
    writer.close()
    writer.close()
    writer.cancel()
    assert files.read("offsets/1") == "one"
    assert [path.name for path in (files.folder / "offsets").iterdir()] == ["1"]


def test_a_cancelled_file_leaves_nothing(files: Files) -> None:
    writer = files.writer("1", "one")
    writer.cancel()
    writer.close()
    assert files.names() == set()


def test_what_a_killed_writer_has_left_is_no_file_and_stops_nobody(spark: SparkSession, files: Files) -> None:
    files.writer("1", "half").flush()
    assert not files.manager.exists(files.path("1"))
    (left,) = files.names()
    assert left.startswith(".1.")
    assert left.endswith(".tmp")
    files.write("1", "whole")
    assert files.read("1") == "whole"


def test_of_two_writers_of_a_new_file_the_second_fails_and_leaves_nothing(files: Files) -> None:
    first, second = files.writer("1", "first"), files.writer("1", "second")
    first.close()
    with pytest.raises(Py4JJavaError) as refused:
        second.close()
    second.cancel()
    assert java_class(refused) == TAKEN
    assert (files.names(), files.read("1")) == ({"1"}, "first")


def test_a_file_is_replaced_where_that_is_asked_for(files: Files) -> None:
    files.write("1", "first")
    files.write("1", "second", overwrite=True)
    assert (files.names(), files.read("1")) == ({"1"}, "second")


@pytest.mark.parametrize("overwrite", [True, False])
def test_checksums_of_a_file_that_is_gone_refuse_no_new_one(
    spark: SparkSession, files: Files, *, overwrite: bool
) -> None:
    with writing_checksums(spark):
        Files(spark, files.folder, FORMER).write("1", "first")
    assert files.names() == {"1", ".1.crc"}
    if not overwrite:
        (files.folder / "1").unlink()
    files.write("1", "second", overwrite=overwrite)
    assert (files.names(), files.read("1")) == ({"1"}, "second")


def test_what_the_former_manager_has_written_is_checked_and_deleted_with_its_checksums(
    spark: SparkSession, files: Files
) -> None:
    with writing_checksums(spark):
        Files(spark, files.folder, FORMER).write("1", "first")
    (files.folder / "1").write_text("fIrst")
    with pytest.raises(Py4JJavaError) as refused:
        files.read("1")
    assert java_class(refused) == "org.apache.hadoop.fs.ChecksumException"
    files.manager.delete(files.path("1"))
    files.manager.delete(files.path("1"))
    assert files.names() == set()


def test_files_are_listed_by_a_filter(spark: SparkSession, files: Files) -> None:
    for name in ("1", "2", "metadata"):
        files.write(name, name)
    a_digit = spark._jvm.org.apache.hadoop.fs.GlobFilter("[0-9]")
    listed = files.manager.list(files.path(""), a_digit)
    assert {(entry.getPath().getName(), entry.getLen()) for entry in listed} == {("1", 1), ("2", 1)}


def test_folders_are_made_as_often_as_wanted_below_links_too(files: Files, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    files.folder.symlink_to(elsewhere)
    files.manager.mkdirs(files.path(""))
    for _ in range(2):
        files.manager.mkdirs(files.path("state/0/1"))
    files.write("1", "one")
    assert (elsewhere / "state/0/1").is_dir()
    assert (elsewhere / "1").read_text() == "one"


def test_what_cant_be_made_is_said(files: Files) -> None:
    files.folder.write_text("a file")
    for make in (files.manager.mkdirs, lambda path: files.manager.createAtomic(path, False)):
        with pytest.raises(Py4JJavaError, match="checkpoint"):
            make(files.path("state"))


def test_it_works_on_a_disk_whose_files_have_one_name(spark: SparkSession, tmp_path: Path) -> None:
    with stalling_disk(tmp_path / "disk") as disk:
        files = Files(spark, disk.path / "checkpoint")
        second = files.writer("1", "second")
        files.write("1", "first")
        with pytest.raises(Py4JJavaError) as refused:
            second.close()
        assert "AlreadyExists" in java_class(refused)
        files.write("1", "third", overwrite=True)
        assert (files.names(), files.read("1")) == ({"1"}, "third")


def test_other_file_systems_are_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """A view of local files under a scheme of its own isn't local for Spark. Hadoop writes there, with checksums."""
    configuration = spark._jsc.hadoopConfiguration()
    mounted = spark._jvm.org.apache.hadoop.fs.Path("viewfs://mounted/1")
    configuration.set("fs.viewfs.mounttable.mounted.linkFallback", f"file://{tmp_path}")
    manager = spark._jvm.statehouse.files.LocalFiles(mounted, configuration)
    manager.mkdirs(spark._jvm.org.apache.hadoop.fs.Path("viewfs://mounted/state"))
    writer = manager.createAtomic(mounted, False)
    writer.writeBytes("one")
    writer.close()
    assert (tmp_path / "1").read_text() == "one"
    assert {path.name for path in tmp_path.iterdir()} == {"1", ".1.crc", "state"}


def build(app: Application) -> None:
    visits = parse_json(app.stream("visits"), {"page": FieldType.TEXT})
    app.store("visits", aggregate(visits, Count()))


@pytest.mark.timeout(240)
def test_a_query_with_state_goes_on_with_each_manager_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    for number, manager in enumerate((FORMER, OURS, FORMER), start=1):
        with set_for_a_while(spark, {MANAGER: manager}):
            topology = TopologyTest("app", build, spark, tmp_path)
            topology.pipe("visits", Record("ann", b'{"page":"home"}', 1_700_000_000_000)).run()
            assert topology.store("visits") == {"ann": number}, manager
    assert list(tmp_path.rglob(".*.tmp")) == []
