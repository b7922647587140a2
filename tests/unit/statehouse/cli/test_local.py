"""The commands of the local cluster where none runs: what they say, and their exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from statehouse.cli.exits import ExitCode
from statehouse.cli.local import _application, typed_program
from statehouse.cli.main import app
from statehouse.local.application_file import ApplicationFile
from statehouse.local.applications import LocalApplication
from statehouse.local.cluster_state import ClusterState
from statehouse.local.process import ProcessIdentity

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_new_says_what_it_has_made_and_what_to_do_next(run: Run):
    result = run("new", "hello")
    assert result.exit_code == ExitCode.DONE
    assert "  hello/topology.py\n" in result.stdout
    assert "cd hello && statehouse up" in result.stdout
    again = run("new", "hello")
    assert (again.exit_code, again.stdout) == (ExitCode.ERROR, "")
    assert "not an empty folder" in again.stderr
    assert run("new", "Hello").exit_code == ExitCode.USAGE
    assert run("new").exit_code == ExitCode.USAGE


def test_up_says_why_an_application_can_not_run(run: Run, tmp_path: Path):
    nobody = run("up", "--app", "nobody")
    assert nobody.exit_code == ExitCode.ERROR
    assert "there is no application 'nobody'" in nobody.stderr
    (tmp_path / "statehouse.toml").write_text("[up]\napp = 3\n")
    wrong = run("up")
    assert wrong.exit_code == ExitCode.USAGE
    assert "up.app" in wrong.stderr
    assert not (tmp_path / ".statehouse").exists()


def test_logs_and_restart_need_a_cluster(run: Run):
    for words in (("logs",), ("logs", "node-a"), ("restart", "node-a")):
        result = run(*words)
        assert result.exit_code == ExitCode.ERROR
        assert "nothing" in result.stderr
    assert run("restart").exit_code == ExitCode.USAGE


def test_logs_of_what_has_ended_can_be_read(run: Run, tmp_path: Path):
    logs = tmp_path / ".statehouse" / "logs"
    logs.mkdir(parents=True)
    (logs / "node-a.log").write_text("one\ntwo\n")
    (logs / "router.log").write_text("three\n")
    assert run("logs", "node-a").stdout == "one\ntwo\n"
    assert run("logs", "node-a", "--lines", "1").stdout == "two\n"
    assert run("logs").stdout == "node-a | one\nnode-a | two\nrouter | three\n"


def test_down_deletes_what_a_cluster_has_left(run: Run, tmp_path: Path):
    (tmp_path / ".statehouse" / "logs").mkdir(parents=True)
    assert run("down", "--keep-data").exit_code == ExitCode.DONE
    assert (tmp_path / ".statehouse").exists()
    result = run("down")
    assert (result.exit_code, result.stderr) == (
        ExitCode.DONE,
        f"nothing is running in {tmp_path / '.statehouse'}\n",
    )
    assert not (tmp_path / ".statehouse").exists()


def test_which_application_up_runs(run: Run, tmp_path: Path):
    """The one that is named, else the one that runs, else the one in the folder's file, else the leaderboard."""
    file = ApplicationFile(app="wards")
    assert _application("tally", file, tmp_path).name == "tally"
    assert _application(None, file, tmp_path).name == "wards"
    assert _application(None, None, tmp_path).name == "leaderboard"
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    running = LocalApplication("hello", "hello", "hello.topology")
    ClusterState(running, tmp_path, {"kafka": 1}, {"kafka": own}).save(tmp_path)
    assert _application(None, file, tmp_path) == running
    assert _application("tally", file, tmp_path).name == "tally"


def test_a_program_is_printed_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "my tools" / "grpcurl"
    monkeypatch.setenv("PATH", str(program.parent))
    assert typed_program("grpcurl") is None
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert typed_program("grpcurl") == f"'{program}'"
    monkeypatch.chdir(tmp_path)
    assert typed_program("grpcurl") == "'my tools/grpcurl'"
