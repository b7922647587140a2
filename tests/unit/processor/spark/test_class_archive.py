"""Which options a driver's JVM is started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from processor.spark import class_archive
from processor.spark.class_archive import driver_from_archive, submitted_with
from statehouse.local.class_archives import ClassArchives
from tests.support.fake_java import write_fake_java


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of a Spark without jars."""
    for name in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("STATEHOUSE_CACHE_DIR", str(tmp_path / "cache"))
    archives = ClassArchives("spark", write_fake_java(tmp_path / "java"), [])
    return archives.make(lambda path, _log: path.touch())


def options(conf: dict[str, str]) -> str:
    with driver_from_archive(conf):
        return os.environ.get("SPARK_SUBMIT_OPTS", "")


def test_a_driver_starts_from_the_archive(archive: Path) -> None:
    assert options({"spark.driver.extraJavaOptions": "-Xss4m"}).startswith(f"-XX:SharedArchiveFile={archive} ")
    assert "SPARK_SUBMIT_OPTS" not in os.environ


def test_the_users_options_come_last_and_are_there_afterwards(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")
    assert options({}).split()[0] == f"-XX:SharedArchiveFile={archive}"
    assert options({}).split()[-1] == "-XX:+UseSerialGC"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:+UseSerialGC"


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_an_archive_of_the_users_own_is_used(name: str) -> None:
    assert options({name: "-XX:SharedArchiveFile=mine.jsa"}) == ""


@pytest.mark.usefixtures("archive")
def test_without_java_spark_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert options({}) == ""


def test_options_are_taken_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with pytest.raises(RuntimeError), submitted_with(["-Xss4m"]):
        raise RuntimeError
    assert "SPARK_SUBMIT_OPTS" not in os.environ


def test_a_maker_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert class_archive.main([]) == 1
    assert "JAVA_HOME" in capsys.readouterr().err


def test_none_is_made_where_it_is_turned_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("STATEHOUSE_CLASS_ARCHIVE", "no")
    assert class_archive.main([]) == 0
    assert capsys.readouterr().err == "class_archive is off: no archive is made\n"
