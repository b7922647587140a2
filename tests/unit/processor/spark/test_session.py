"""Settings of Spark that depend on where it runs."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from processor.settings import ProcessorSettings
from processor.spark import session as spark_session
from processor.spark.session import _has_connector, refuse_connect
from processor.spark.worker_sockets import ENABLED
from statehouse.errors import ConfigurationError

FORMER = "FileSystemBasedCheckpointFileManager"


def settings(master: str | None, **conf: str) -> ProcessorSettings:
    return ProcessorSettings(bootstrap="unused:1", spark_master=master, spark_conf=conf)


def file_manager(master: str, checkpoints: str) -> str:
    """The class that writes a session's checkpoints; empty if Spark chooses it."""
    chosen = spark_session._local_files(
        ProcessorSettings(bootstrap="unused:1", spark_master=master, checkpoint_dir=checkpoints)
    )
    return chosen.get("spark.sql.streaming.checkpointFileManagerClass", "")


@pytest.fixture(autouse=True)
def not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(spark_session, "socket_conf", lambda: {ENABLED: "true"})


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        (None, True),
        ("local", True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://there:7077", False),
        ("yarn", False),
    ],
)
def test_only_workers_on_this_machine_are_reached_over_sockets(master: str | None, expected: bool) -> None:
    assert bool(spark_session._worker_sockets(settings(master), is_running=False)) is expected


def test_what_spark_submit_has_started_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert spark_session._worker_sockets(settings(None), is_running=False) == {}


def test_a_users_choice_of_sockets_stays() -> None:
    assert spark_session._worker_sockets(settings("local[2]", **{ENABLED: "false"}), is_running=False) == {}


def test_a_session_that_runs_keeps_its_sockets() -> None:
    assert spark_session._worker_sockets(settings("local[2]"), is_running=True) == {}


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use a classic session"):
        refuse_connect("pyspark.sql.connect.dataframe")
    refuse_connect("pyspark.sql.classic.dataframe")
    refuse_connect("pyspark.sql.dataframe")


def test_jars_of_ones_own_leave_kafkas_connector_there() -> None:
    assert not _has_connector({"spark.jars": "/jars/own.jar"})
    assert not _has_connector({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1"})
    assert _has_connector({"spark.jars": "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"})
    assert _has_connector({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"})


@pytest.mark.parametrize(
    ("master", "checkpoints", "expected"),
    [
        ("local[2]", "checkpoints", "statehouse.files.LocalFiles"),
        ("local[2]", "file:///srv/checkpoints", "statehouse.files.LocalFiles"),
        ("spark://there:7077", "file:///srv/checkpoints", "statehouse.files.LocalFiles"),
        ("spark://there:7077", "checkpoints", ""),
        ("local[2]", "s3a://bucket/checkpoints", ""),
        ("local[2]", "hdfs:///checkpoints", ""),
    ],
)
def test_checkpoints_on_a_local_disk_are_written_by_our_class(
    monkeypatch: pytest.MonkeyPatch, master: str, checkpoints: str, expected: str
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert file_manager(master, checkpoints) == expected


def test_a_driver_that_was_submitted_has_spark_s_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert file_manager("local[2]", "checkpoints").endswith(f".checkpointing.{FORMER}")


@pytest.mark.parametrize(("version", "package"), [("3.5.7", ""), ("4.0.1", ""), ("4.1.0", "checkpointing.")])
def test_an_older_spark_or_one_without_our_jar_has_its_own_class(
    monkeypatch: pytest.MonkeyPatch, version: str, package: str
) -> None:
    monkeypatch.setattr(spark_session.pyspark, "__version__", version)
    monkeypatch.setattr(spark_session, "_driver_finds", lambda _name: False)
    assert file_manager("local[2]", "checkpoints").endswith(f".streaming.{package}{FORMER}")
