"""The page of the command line: its commands print what it says, of a recorded fleet."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from tests.support.console import commands
from tests.support.recorded_fleet import recorded_fleet

PAGE = (Path(__file__).parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_commands_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STATEHOUSE_CONTEXT", raising=False)
    for name in ("ca.pem", "token"):
        (tmp_path / name).touch()
    played = 0
    with recorded_fleet() as fleet:
        monkeypatch.setenv("STATEHOUSE_ROUTER", fleet.router.target)
        for command in commands(PAGE):
            words = shlex.split(command.line.replace("\\\n", " "))[1:]
            # Against a broker: tests/integration/processor/test_topics_command.py, tests/integration/cli
            if words[0] in {"topics", "dead-letters", "send"}:
                continue
            done = CliRunner().invoke(app, words)
            assert done.exit_code == ExitCode.DONE, f"{command.line}\n{done.stderr}"
            # Addresses here are longer than those of the page, and columns wider.
            assert fleet.as_recorded(done.stdout).split() == command.output.split(), command.line
            played += 1
    assert played >= 7
