"""The directory of the sockets between Spark and its Python workers: who may enter, and what stays after a crash."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processor.spark.worker_sockets import DIRECTORY, ENABLED, remove_left_behind, socket_conf

PROGRAM = (
    "import sys; from processor.spark.worker_sockets import *; "
    "print(socket_conf()[DIRECTORY], flush=True); sys.stdin.read()"
)


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:  # short enough, unlike pytest's own
        monkeypatch.setenv("TMPDIR", parent)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(parent)


def started() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def make_old(directory: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(directory, (an_hour_ago, an_hour_ago))


def test_nobody_else_can_enter(parent: Path) -> None:
    conf = socket_conf()
    directory = Path(conf[DIRECTORY])
    assert conf[ENABLED] == "true"
    assert directory.parent == parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("length", [20, 33, 34, 35, 60])
def test_its_name_is_as_short_as_spark_wants_it(parent: Path, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = parent / ("x" * (length - len(str(parent)) - 1))
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)
    directory = Path(socket_conf()[DIRECTORY])
    assert len(os.fsencode(directory)) <= 61
    assert (directory.parent == deep) == (length <= 33)
    directory.rmdir()


def test_without_a_directory_spark_keeps_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert socket_conf() == {}


def test_a_process_that_ends_removes_it(parent: Path) -> None:
    process, directory = started()
    assert directory.parent == parent
    assert directory.is_dir()
    process.communicate("")
    assert process.returncode == 0
    assert not directory.exists()


def test_what_a_crash_leaves_is_removed_and_nothing_else(parent: Path) -> None:
    lost, left = started()
    alive, kept = started()
    lost.kill()
    lost.communicate()
    (left / ".some.sock").touch()
    for directory in (left, kept):
        make_old(directory)
    new = Path(tempfile.mkdtemp(prefix="statehouse-sockets-", dir=parent))
    (parent / "something else").mkdir()
    remove_left_behind(parent)
    assert not left.exists()
    assert kept.is_dir(), "its process lives"
    assert new.is_dir(), "its process may not have come to lock it"
    assert (parent / "something else").is_dir()
    alive.communicate("")
