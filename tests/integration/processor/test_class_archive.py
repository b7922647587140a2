"""The JVM of Spark's driver starts from a class archive; a damaged one is as good as none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

from processor.spark import class_archive
from processor.spark.class_archive import driver_from_archive, submitted_with
from statehouse.local.class_archives import ClassArchives, making
from statehouse.local.jars import default_cache_dir
from statehouse.local.java import find_java
from tests.support.spark_cluster import SPARK_HOME

WAIT_S = 300.0
SESSION = """
from pathlib import Path
from pyspark import SparkContext
from processor.settings import ProcessorSettings
from processor.spark.session import open_session
open_session("tests", ProcessorSettings(bootstrap="unused:1", spark_master="local[1]"))
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
"""


def train(archive: Path, log: Path) -> None:
    """Archive the few classes that this needs: the JVM is started as a driver's is."""
    with submitted_with(making(archive)), log.open("wb") as said:
        command = [SPARK_HOME / "bin" / "spark-submit", "--version"]
        subprocess.run(command, stdout=said, stderr=said, timeout=WAIT_S, check=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cache")
    (path / "jars").symlink_to(default_cache_dir() / "jars")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATEHOUSE_CACHE_DIR", str(path))
        yield path


@pytest.fixture(scope="module")
def whole(cache: Path) -> Path:
    return ClassArchives("spark", find_java(), sorted((SPARK_HOME / "jars").glob("*.jar")), cache).make(train)


@pytest.fixture
def archive(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """The archive, which a test may damage."""
    copy = Path(shutil.copy2(whole, tmp_path))
    whole.chmod(0o600)
    yield whole
    shutil.copy2(copy, whole)


@contextmanager
def driver() -> Iterator[str]:
    """What a driver's JVM has mapped."""
    with driver_from_archive({}):
        gateway: Any = launch_gateway()
    try:
        yield Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(WAIT_S)


def cut_off(archive: Path) -> None:
    os.truncate(archive, archive.stat().st_size // 2)


def overwritten(archive: Path) -> None:
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        file.write(b"damaged" * 1000)


def emptied(archive: Path) -> None:
    size = archive.stat().st_size
    os.truncate(archive, 0)
    os.truncate(archive, size)


@pytest.mark.feature("driver-starts-archive")
@pytest.mark.long
def test_a_session_maps_the_archive(archive: Path) -> None:
    mapped = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert str(archive) in mapped.stdout
    assert "[cds" not in mapped.stdout + mapped.stderr


@pytest.mark.long
def test_another_choice_of_the_users_counts(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xshare:off")
    with driver() as mapped:
        assert str(archive) not in mapped


@pytest.mark.feature("driver-starts-archive")
@pytest.mark.parametrize("damage", [cut_off, overwritten, emptied])
def test_a_damaged_archive_is_as_good_as_none(
    archive: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    damage(archive)
    with driver() as mapped:
        assert str(archive) not in mapped
    said = capfd.readouterr()
    assert "archive" not in said.out + said.err


@pytest.mark.long
def test_the_training_makes_an_archive_that_a_session_maps(cache: Path) -> None:
    for other in (cache / "class-archives").glob("spark-*.jsa"):
        other.unlink()
    assert class_archive.main([]) == 0
    (made,) = (cache / "class-archives").glob("spark-*.jsa")
    assert made.stat().st_size > 50_000_000
    with driver() as mapped:
        assert str(made) in mapped
    assert {path.name for path in made.parent.iterdir()} == {made.name, ".lock", "spark.log"}
