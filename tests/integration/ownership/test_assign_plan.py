"""`statehouse assign plan` next to a running fleet: it looks, and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processor.ownership.preview import preview
from processor.ownership.topics.observed import ObservedFleet, observe
from statehouse.contract.topology import assignment_topic
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import ServerProcess
from tests.support.kafka import create_topic, read_all
from tests.support.polling import poll_until
from tests.support.settings import ownership

ROOT = Path(__file__).parents[3]
SETTINGS = ownership(heartbeat_interval_ms=200, session_timeout_ms=30_000)
TIMING = {"heartbeat-interval-ms": 200, "session-timeout-ms": 30_000}


class Served:
    """Six partitions on two nodes, `big` with twice the capacity of `small`, and how to ask for a plan."""

    def __init__(self, bootstrap: str, application: str) -> None:
        self.bootstrap, self.application = bootstrap, application

    def observed(self) -> ObservedFleet:
        return observe(self.bootstrap, self.application, lambda _acting: SETTINGS, 30.0)

    def is_settled(self) -> bool:
        try:
            fleet = self.observed()
        except LookupFailure:  # no assignment yet
            return False
        restored = [view.restored for node in fleet.nodes.values() for view in node.replicas.values()]
        # While a hand-over waits for its second epoch there is nothing to do, either.
        actives = Counter(task.active for task in fleet.assignment.tasks.values())
        return (
            fleet.nodes.keys() == {"big", "small"}
            and restored == [True] * 12
            and actives == {"big": 4, "small": 2}
            and preview(fleet, {}, []).summary == "nothing to do"
        )

    def plan(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "statehouse.cli", "assign", "plan"]
        command += ["--bootstrap", self.bootstrap, "--application-id", self.application]
        options = [part for name, value in TIMING.items() for part in (f"--{name}", str(value))]
        ended = subprocess.run(
            [*command, *options, *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "500"},
        )
        assert ended.returncode == code, ended.stderr
        return ended


@pytest.fixture
def served(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Served]:
    app = unique_name("app")
    create_topic(kafka.bootstrap, f"{app}-scores-changelog", 6, {"cleanup.policy": "compact"})
    file = tmp_path / "topology.toml"
    file.write_text(f'application_id = "{app}"\n[[stores]]\nname = "scores"\n')
    common = {"bootstrap": kafka.bootstrap, **TIMING}
    processes = [ServerProcess("static", "processor.cli", {"static": file, **common}, 0, tmp_path)]
    for name, capacity in (("big", 2), ("small", 1)):
        options = {"instance-id": name, "application-id": app, "state-dir": tmp_path / name, "capacity": capacity}
        port = free_port()
        processes.append(ServerProcess(name, "query_service", options | common | {"port": port}, port, tmp_path))
    try:
        for process in processes:
            process.start()
        served = Served(kafka.bootstrap, app)
        poll_until(served.is_settled, 90, "both nodes to hold their shares")
        # From now on nobody has a reason to write to the assignment topic.
        assert processes[0].stop(signal.SIGTERM) == 0
        yield served
    finally:
        for process in processes:
            process.close()


def loads(document: dict[str, Any], when: str) -> dict[str, tuple[int, int, int]]:
    return {load["node"]: (load["capacity"], load["actives"], load["standbys"]) for load in document[when]}


@pytest.mark.feature("would-move-why")
def test_it_shows_what_would_move_and_why_and_moves_nothing(served: Served) -> None:
    before = read_all(served.bootstrap, assignment_topic(served.application))

    document = json.loads(
        served.plan("--add", "new:capacity=3,rack=a", "--add", "plain", "--remove", "small", "-o", "json").stdout
    )
    assert document["application"] == served.application
    assert document["epoch"] == served.observed().assignment.epoch
    assert loads(document, "before") == {"big": (2, 4, 2), "small": (1, 2, 4)}
    assert loads(document, "after") == {"big": (2, 2, 2), "new": (3, 3, 3), "plain": (1, 1, 1)}
    assert document["is_complete"]
    assert f"epochs: {len(document['steps'])};" in document["summary"]
    reasons = [change["reason"] for step in document["steps"] for change in step]
    assert all(reasons)
    assert any("active from small to big: small is leaving" in reason for reason in reasons)

    table = served.plan("--add", "new").stdout
    assert "warm-up on new: the active is to move there from" in table
    assert "standby on small dropped: the copies that stay are as good" in table

    assert read_all(served.bootstrap, assignment_topic(served.application)) == before


def test_topics_that_are_not_there_end_it_in_time(kafka: EmbeddedKafka) -> None:
    nowhere = Served(kafka.bootstrap, "nobody")
    ended = nowhere.plan("--timeout", "0.5", code=4)
    assert "topic nobody-statehouse-assignment could not be read to its end within 0.5 s" in ended.stderr
    assert ended.stdout == ""
    assert "--add 'n1:zone=a' is not NAME[" in nowhere.plan("--add", "n1:zone=a", code=2).stderr
