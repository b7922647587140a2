"""Listeners of a real node, installed as a package is: they hear of a restore, and can't hold it up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import members_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet
from tests.support.kafka import read_all
from tests.support.plugins import install
from tests.support.polling import poll_until
from tests.support.quotas import limit_reads

PLUGIN = '''
"""A listener that writes what it is told, and one of each bad kind."""
import json, os

class Recorder:
    def __init__(self):
        self._file = open(os.environ["LISTENER_FILE"], "a", buffering=1)

    def _tell(self, *event):
        self._file.write(json.dumps(event) + "\\n")

    def on_node_state(self, old, new): self._tell("node", old, new)
    def on_task_state(self, task, old, new): self._tell("task", str(task), old, new)
    def on_restore_start(self, where, start_offset, end_offset, *, full):
        self._tell("start", where.store, where.partition, start_offset, end_offset, full)
    def on_batch_restored(self, where, batch_end_offset, records): self._tell("batch", batch_end_offset, records)
    def on_restore_end(self, where, total): self._tell("end", total)
    def on_restore_suspended(self, where, total): self._tell("suspended", total)
    def on_update_start(self, where, start_offset): self._tell("update", start_offset)
    def on_batch_loaded(self, where, batch_end_offset, records, end_offset): self._tell("loaded", batch_end_offset)
    def on_update_suspended(self, where, offset, end_offset, reason): self._tell("unloaded", offset, reason)

class Blocked(Recorder):
    """Waits in its first event until somebody opens the other end of the pipe."""
    def __init__(self): pass
    def _tell(self, *event): open(os.environ["LISTENER_PIPE"]).read()

class Raising(Recorder):
    def __init__(self): pass
    def _tell(self, *event): raise RuntimeError("a listener's own fault")
'''

ENTRY_POINTS = {
    "blocked": "test_plugin:Blocked",
    "raising": "test_plugin:Raising",
    "recorder": "test_plugin:Recorder",
}


class Events:
    """What the recorder of a node wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[list[Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def of(self, *kinds: str) -> list[list[Any]]:
        return [event for event in self.all() if event[0] in kinds]

    def wait(self, kind: str) -> list[list[Any]]:
        return poll_until(lambda: self.of(kind), 30, f"the event {kind}")


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    """Install the plug-in for the nodes that the test starts."""
    packages = tmp_path / "packages"
    install(packages, "test_plugin", "statehouse.listeners", ENTRY_POINTS, PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("LISTENER_FILE", str(tmp_path / "events"))
    monkeypatch.setenv("LISTENER_PIPE", str(tmp_path / "pipe"))
    os.mkfifo(tmp_path / "pipe")
    return Events(tmp_path / "events")


BREAKING = '''
"""Breaks threads of its node once that runs, as a defect of theirs would."""
import os
from query_service.states.ownership import NodeOwnership
from query_service.replicas.replication import Replicator
from statehouse.kafka.control_log import ControlLogReader

def breaks(*_):
    raise RuntimeError("a thread's own fault")

class Breaking:
    def on_node_state(self, old, new):
        if new == "RUNNING":
            cls, method = {
                "a replicator": (Replicator, "_give_up_lost"),
                "a control log": (ControlLogReader, "_ask_for_end"),
                "what takes its records": (NodeOwnership, "take_member"),
            }[os.environ["BREAKS"]]
            setattr(cls, method, breaks)
    def on_task_state(self, task, old, new): pass
'''


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


@pytest.mark.feature("listeners-states-restores")
def test_restore_goes_on_whatever_listeners_do(fleet: Fleet, events: Events) -> None:
    # More than the data plane writes of a partition at once.
    fleet.put({f"k{nth}": str(nth) * 3_000 for nth in range(2_000)})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])  # one listener hangs since its first event, another raises at each
    assert node.get("k1999").value.text == "1999" * 3_000
    events.wait("end")
    kinds = events.of("start", "batch", "end")
    assert kinds[0] == ["start", STORE, 0, 0, 2_000, True]
    assert kinds[-1] == ["end", 2_000]
    offsets = [offset for _, offset, _ in kinds[1:-1]]
    assert offsets == sorted(offsets)
    assert offsets[-1] == 2_000
    assert len(offsets) > 1
    assert sum(records for _, _, records in kinds[1:-1]) == 2_000
    assert ["task", "0_0", "created", "restoring"] in events.all()
    poll_until(lambda: ["node", "REBALANCING", "RUNNING"] in events.all(), 30, "the node's state")
    assert "a listener's own fault" in node.log
    assert node.stop() == 0, "a listener that hangs does not hold up the end"
    assert events.all()[-1] == ["node", "PENDING_SHUTDOWN", "NOT_RUNNING"]


@pytest.mark.feature("listeners-states-restores")
@pytest.mark.parametrize("engine", ["go", "python"])
def test_restore_that_is_taken_away_is_suspended(fleet: Fleet, events: Events, engine: str) -> None:
    limit_reads(fleet.bootstrap, f"{fleet.application_id}-n1-restore", bytes_per_s=500)
    fleet.put({f"k{nth}": str(nth) for nth in range(10)})
    fleet.put({f"k{nth}": str(nth) for nth in range(10_000)})  # a batch that never comes
    node = fleet.node("n1", engine=engine)
    fleet.assign(TaskAssignment("n1"))
    assert events.wait("batch") == [["batch", 10, 10]]
    assert [task.state for task in node.node().tasks] == ["restoring"]
    fleet.assign(TaskAssignment("other"))
    assert events.wait("suspended") == [["suspended", 10]]
    assert not events.of("end")
    poll_until(lambda: not node.node().tasks, 30, "the task to be closed")

    fleet.assign(TaskAssignment("n1"))
    poll_until(lambda: len(events.of("start")) == 2, 30, "the second restore")
    assert events.of("start")[1] == ["start", STORE, 0, 10, 10_010, False], "it goes on where it was"


@pytest.mark.feature("listeners-states-restores")
def test_standby_updates_are_told_until_it_is_promoted_or_gone(fleet: Fleet, events: Events) -> None:
    fleet.put({"a": "1"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("other", ("n1",)))
    assert events.wait("update") == [["update", 1]]
    fleet.put({"b": "2"})
    assert events.wait("loaded") == [["loaded", 2]]
    fleet.assign(TaskAssignment("n1"))
    assert events.wait("unloaded") == [["unloaded", 2, "promoted"]]
    fleet.put({"c": "3"})
    poll_until(lambda: node.get("c").found, 30, "the active to follow")
    fleet.assign(TaskAssignment("other", ("n1",)))
    poll_until(lambda: len(events.of("update")) == 2, 30, "it to be a standby again")
    fleet.assign(TaskAssignment("other"))
    poll_until(lambda: len(events.of("unloaded")) == 2, 30, "it to be gone")
    assert events.of("update", "loaded", "unloaded") == [
        ["update", 1],
        ["loaded", 2],
        ["unloaded", 2, "promoted"],
        ["update", 3],
        ["unloaded", 3, "migrated"],
    ]


@pytest.mark.parametrize("part", ["a replicator", "a control log", "what takes its records"])
def test_a_node_of_which_a_part_broke_ends_and_says_why(
    fleet: Fleet, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("BREAKS", part)
    install(tmp_path / "more", "breaking", "statehouse.listeners", {"breaking": "breaking:Breaking"}, BREAKING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "more"), os.environ["PYTHONPATH"]]))
    fleet.put({"a": "1"})
    # Where the data plane reads, no replicator does.
    node = fleet.node("n1", engine="python", drain_timeout_ms=600_000)
    fleet.assign(TaskAssignment("n1"))
    assert node.wait() == 1
    assert "the node stops by a defect" in node.log
    assert "a thread's own fault" in node.log
    states = [new for _, _, new in events.of("node")]
    assert states[-3:] == ["ERROR", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    assert ["task", "0_0", "suspended", "closed"] in events.of("task")
    heartbeats = read_all(fleet.bootstrap, members_topic(fleet.application_id))
    assert heartbeats[-1] == (b"n1", None), "it doesn't let others wait for its session timeout"
