"""`statehouse reset` against a real broker, and a node that serves the application meanwhile."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from processor.cli import reset
from processor.ownership.declared_settings import ownership_settings
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.topics.controller_record import encode_controller
from processor.run.reset import ALIVE_S, ResetRefused
from processor.settings import ProcessorSettings
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import (
    StoreSpec,
    assignment_topic,
    changelog_topic,
    commits_topic,
    dead_letters_topic,
    updates_topic,
)
from statehouse.control.v1 import commits_pb2
from statehouse.errors import ConfigurationError, LookupFailure
from statehouse.kafka import clients
from statehouse.kafka.topics import partition_counts
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import create_topic, produce, produce_placed, read_all
from tests.support.polling import poll_until


class Application:
    """An application that has run, and `statehouse reset` for it."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        self.fleet, self.name, self.bootstrap = fleet, fleet.application_id, fleet.bootstrap
        self.checkpoint_dir = directory / "checkpoints"
        self.checkpoint = self.checkpoint_dir / self.name / "counts-query" / "commits"
        self.checkpoint.mkdir(parents=True)
        (self.checkpoint / "0").write_text("v1")
        (self.checkpoint_dir / "another").mkdir()
        self.deletable = {changelog_topic(self.name, STORE), updates_topic(self.name, "recent")}
        self.kept = {dead_letters_topic(self.name), f"{self.name}-players", changelog_topic(f"{self.name}-b", STORE)}

    def commit(self, age_s: float = 0.0, *, stopped: bool = False) -> None:
        record = commits_pb2.Commit(store=STORE, query_id="q", batch_id=7, stopped=stopped)
        written_ms = round((time.time() - age_s) * 1000)
        produce_placed(
            self.bootstrap, commits_topic(self.name), [(0, STORE.encode(), record.SerializeToString(), written_ms)]
        )

    def beat(self, age_s: float = 0.0, *, has_stopped: bool = False, is_standby: bool = False) -> None:
        record = ControllerRecord("c1", "host", is_standby, 1, ownership_settings(ProcessorSettings()), has_stopped)
        written_ms = round((time.time() - age_s) * 1000)
        produce_placed(self.bootstrap, assignment_topic(self.name), [(0, *encode_controller(record), written_ms)])

    def reset(self, *options: str, answer: str | None = None) -> Result:
        app = typer.Typer()
        app.command()(reset)
        command = ["its_topology", "--to", "earliest", "--bootstrap", self.bootstrap]
        return CliRunner().invoke(
            app,
            [*command, "--checkpoint-dir", str(self.checkpoint_dir), *options],
            input=answer,
            env={"COLUMNS": "500"},
        )

    def topics(self) -> set[str]:
        counts = partition_counts(clients.admin(self.bootstrap, "test"), [*self.deletable, *self.kept])
        return {topic for topic, count in counts.items() if count is not None}

    def is_untouched(self) -> bool:
        return self.topics() == self.deletable | self.kept and self.checkpoint.exists()


@pytest.fixture
def application(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Application]:
    name = unique_name("app")
    (tmp_path / "its_topology.py").write_text(f"application_id = {name!r}\n\n\ndef build(app):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "its_topology", raising=False)
    beside = [
        StoreSpec("recent", updates_topic(name, "recent"), 1, 0, ephemeral=True),
        StoreSpec("players", f"{name}-players", 1, 0, is_global=True),
    ]
    for topic in (
        updates_topic(name, "recent"),
        f"{name}-players",
        dead_letters_topic(name),
        changelog_topic(f"{name}-b", STORE),  # of another application, whose name only begins alike
    ):
        create_topic(kafka.bootstrap, topic)
    with Fleet(kafka.bootstrap, name, tmp_path, partitions=1, beside=beside) as fleet:
        yield Application(fleet, tmp_path)


@pytest.mark.feature("begin-anew-checkpoints")
def test_checkpoints_changelogs_and_what_nodes_hold_go_together(application: Application) -> None:
    fleet = application.fleet
    fleet.put({"a": "1", "b": "2"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    assert node.get("a").found

    application.commit(age_s=ALIVE_S / 2)
    refused = application.reset("--yes")
    assert isinstance(refused.exception, ResetRefused)
    assert "stop it first" in str(refused.exception)
    elsewhere = application.reset("--yes", "--checkpoint-dir", "hdfs://namenode/checkpoints")
    assert isinstance(elsewhere.exception, ConfigurationError)
    assert "hdfs://namenode/checkpoints" in str(elsewhere.exception)
    unreachable = application.reset("--yes", "--bootstrap", f"127.0.0.1:{free_port()}", "--timeout", "0.5")
    assert isinstance(unreachable.exception, LookupFailure)
    application.commit(stopped=True)

    shown = application.reset("--dry-run", "-o", "json")
    assert json.loads(shown.stdout) == {
        "application": application.name,
        "checkpoints": str(application.checkpoint_dir / application.name),
        "queries": ["counts-query"],
        "topics": {changelog_topic(application.name, STORE): 2, updates_topic(application.name, "recent"): 0},
        "commit_records": [STORE],
        "kept": [dead_letters_topic(application.name)],
    }
    declined = application.reset(answer="n\n")
    assert declined.exit_code == 1
    assert re.search(rf"{application.name}-counts-changelog +2 offsets", declined.stdout)
    assert application.is_untouched()

    done = application.reset(answer="y\n")
    assert done.exit_code == 0, done.output
    assert application.topics() == application.kept
    assert [path.name for path in application.checkpoint_dir.iterdir()] == ["another"]
    assert read_all(application.bootstrap, commits_topic(application.name))[-1] == (STORE.encode(), None)

    # As the next start does, which reads the sources anew.
    create_topic(application.bootstrap, fleet.changelog, 1, {"cleanup.policy": "compact"})
    create_topic(application.bootstrap, updates_topic(application.name, "recent"))
    produce(application.bootstrap, fleet.changelog, [(b"b", b"3")])
    poll_until(lambda: value_of(node, "b") == "3", 30, "the node to follow the new changelog")
    assert not node.get("a").found, "of the old one nothing is left"

    again = application.reset("--yes")
    assert again.exit_code == 0, "without a checkpoint, too"
    assert fleet.changelog not in application.topics()
    assert "has nothing to delete" in application.reset("--yes").stderr


class Starting:
    """Answers the prompt, and writes the heartbeat of a processor that starts meanwhile."""

    def __init__(self, write: Callable[[], None]) -> None:
        self.write = write

    def __call__(self, *_args: object, **_options: object) -> bool:
        self.write()
        return True


def test_a_processor_that_starts_is_seen_by_its_controller_also_after_the_prompt(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.fleet.put({"a": "1"})
    application.fleet.assign(TaskAssignment("n1"))
    application.beat(has_stopped=False, age_s=ALIVE_S + 1)
    with monkeypatch.context() as answered:
        answered.setattr(typer, "confirm", Starting(application.beat))
        refused = application.reset()
    assert isinstance(refused.exception, ResetRefused)
    assert "controller's heartbeat" in str(refused.exception)
    assert application.is_untouched()

    refused = application.reset("--yes")
    assert isinstance(refused.exception, ResetRefused)
    assert application.is_untouched()
    for stands_by in ({"has_stopped": True}, {"is_standby": True}):
        application.beat(**stands_by)
        assert application.reset("--dry-run").exit_code == 0


def value_of(node: ServerProcess, key: str) -> str | None:
    try:
        answer = node.get(key)
    except LookupFailure:
        return None
    return answer.value.text if answer.found else None
