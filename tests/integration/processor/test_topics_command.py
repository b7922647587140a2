"""`statehouse topics` against a real broker: what it shows, what it changes, and what it can't."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.contract.topology import (
    assignment_topic,
    changelog_topic,
    commits_topic,
    dead_letters_topic,
    members_topic,
)
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import found_topics
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic

TOPOLOGY = """
application_id = {application!r}

def build(app):
    rows = app.table({source!r})
    app.store("boards", rows.selectExpr("key", "value"), partitions={partitions})
"""
Command = Callable[..., Result]


@pytest.fixture
def command(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """The command in this process, with the session that is open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # The file is written twice, of the same size and maybe within a second: a compiled one would look up to date.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(*words: str) -> Result:
        sys.modules.pop("shop", None)
        return CliRunner().invoke(app, ["topics", *words, "--bootstrap", kafka.bootstrap])

    yield run
    sys.modules.pop("shop", None)


@pytest.mark.feature("settings-topics-wanted")
def test_it_checks_and_applies_what_the_code_wants(
    kafka: EmbeddedKafka, command: Command, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    application, source = unique_name("app"), unique_name("source")
    changelog = changelog_topic(application, "boards")
    control = {name(application) for name in (members_topic, assignment_topic, commits_topic)}
    create_topic(kafka.bootstrap, source, partitions=2)
    create_topic(kafka.bootstrap, changelog, partitions=2, config={"cleanup.policy": "delete"})
    (tmp_path / "shop.py").write_text(TOPOLOGY.format(application=application, source=source, partitions=3))

    applied = command("apply", "shop", "-o", "json")
    assert applied.exit_code == ExitCode.ERROR, applied.stderr
    differing = [each for each in json.loads(applied.stdout) if each["difference"] != "none"]
    assert [(each["topic"], each["setting"], each["wanted"], each["found"]) for each in differing] == [
        (changelog, "partitions", "3", "2")
    ]
    assert f"{changelog}: cleanup.policy=compact, was delete" in applied.stderr
    assert "set partitions=2 in the code, or reset the application" in applied.stderr
    found = found_topics(admin(kafka.bootstrap, "tests"), [changelog, dead_letters_topic(application), *control])
    assert None not in found.values()
    assert found[changelog].settings["cleanup.policy"] == "compact"  # type: ignore[union-attr]

    (tmp_path / "shop.py").write_text(TOPOLOGY.format(application=application, source=source, partitions=2))
    checked = command("check", "shop")
    assert checked.exit_code == ExitCode.DONE, checked.stderr
    assert {line.split()[0] for line in checked.stdout.splitlines()[1:]} == found.keys()
