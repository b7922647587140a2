"""The folders of sockets: whose they are, and what becomes of them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from statehouse.errors import ConfigurationError
from statehouse.link.socket_folder import SocketFolder


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder for temporary files, which is another one for these tests. Its path is short."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "t")
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield folder


def ended_pid() -> int:
    """Return the pid of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_this_user_can_reach_it_and_it_goes(temporary: Path) -> None:
    folder = SocketFolder()
    assert folder.path.parent.parent == temporary
    assert folder.path.parent.stat().st_mode & 0o777 == 0o700
    folder.path.touch()
    folder.close()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_the_users_own_folder_for_such_things_comes_first(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = temporary.with_name("r")  # as short as the other: paths of sockets are bounded
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert SocketFolder().path.parent.parent == temporary, "it is not there"
    runtime.mkdir()
    assert SocketFolder().path.parent.parent == runtime
    long = runtime / ("x" * 100)
    long.mkdir()
    for unusable in (str(long), "r", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        assert SocketFolder().path.parent.parent == temporary
    assert list(long.iterdir()) == []


def test_a_path_that_is_too_long_is_an_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / ("x" * 100)
    long.mkdir()
    for unusable, problem in ((long, "too long"), (temporary / "missing", "No such file")):
        monkeypatch.setattr(tempfile, "tempdir", str(unusable))
        with pytest.raises(ConfigurationError, match=f"{problem}.*: set TMPDIR to a shorter path"):
            SocketFolder()
    assert list(long.iterdir()) == []


def test_what_killed_processes_left_is_removed(temporary: Path) -> None:
    gone = ended_pid()
    left = temporary / f"statehouse-{gone}-a"
    left.mkdir()
    (left / "socket").touch()
    running = temporary / f"statehouse-{os.getppid()}-a"
    elsewhere = temporary / f"statehouse-{gone}-b"  # of a container whose pids are not ours
    other = temporary / f"statehouse-{gone}x-a"
    target = temporary / "target"
    for each in (running, elsewhere, other, target):
        each.mkdir()
    link = temporary / f"statehouse-{gone}-c"
    link.symlink_to(target)
    lock = os.open(elsewhere, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = SocketFolder()
    assert set(temporary.iterdir()) == {folder.path.parent, running, elsewhere, other, target, link}
    os.close(lock)
    SocketFolder().close()
    assert not elsewhere.exists()
    assert folder.path.parent.exists()
