"""Commands against nodes and a router that run: what they show is what is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import dead_letters_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import create_topic
from tests.support.monitoring import runbook_commands
from tests.support.polling import poll_until
from tests.support.quotas import limit_reads
from tests.support.shared import shared_fleet
from tests.support.terminal import Terminal

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two partitions, both active at `a`; `b` is the standby of the first."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "cli") as fleet:
        nodes = [fleet.node(name) for name in ("a", "b")]
        fleet.router()
        fleet.put({fleet.keys_in(0)[0]: "one", fleet.keys_in(1)[0]: "two"})
        fleet.assign(TaskAssignment("a", ("b",)), TaskAssignment("a"))
        fleet.wait_running(nodes)
        yield fleet


@pytest.fixture
def router(fleet: Fleet) -> ServerProcess:
    return next(process for process in fleet.processes if process.name == "router")


@pytest.fixture
def run(router: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command by a context that is in use."""
    monkeypatch.delenv("STATEHOUSE_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    added = run("context", "add", "live", "--router", router.target, "--use")
    assert added.exit_code == ExitCode.DONE, added.stderr
    return run


def shown(run: Run, *words: str) -> Any:
    done = run(*words, "-o", "json")
    assert done.exit_code == ExitCode.DONE, done.stderr
    return json.loads(done.stdout)


def becomes(look: Callable[[], Any], expected: Any, what: str) -> None:
    """Wait until the router has heard it."""
    poll_until(lambda: look() == expected, 30, what)


@pytest.mark.feature("contexts-routers-tls")
def test_a_context_says_where_commands_go(run: Run, fleet: Fleet) -> None:
    becomes(lambda: shown(run, "stores", "list")[0]["name"], STORE, "the router to know the store")
    described = shown(run, "stores", "describe", STORE)
    assert described["store"]["changelog_topic"] == fleet.changelog
    run("context", "add", "nowhere", "--router", f"127.0.0.1:{free_port()}", "--use")
    assert run("stores", "list").exit_code == ExitCode.UNAVAILABLE
    assert run("stores", "list", "--context", "live", "-o", "name").stdout == f"{STORE}\n"
    assert run("get", STORE, fleet.keys_in(0)[0], "--context", "live").exit_code == ExitCode.DONE
    unknown = run("stores", "describe", "nonsense", "--context", "live")
    assert unknown.exit_code == ExitCode.ERROR
    assert "UNKNOWN_STORE" in unknown.stderr


@pytest.mark.feature("stores-replica-partition")
def test_partitions_are_listed_with_each_replica(run: Run, fleet: Fleet) -> None:
    def listed() -> list[tuple[Any, ...]]:
        names = ("partition", "role", "state", "node", "position", "lag")
        return [tuple(each[name] for name in names) for each in shown(run, "partitions", "list", "--store", STORE)]

    expected = [
        (0, "ACTIVE", "running", "a", 1, 0),
        (0, "STANDBY", "running", "b", 1, 0),
        (1, "ACTIVE", "running", "a", 1, 0),
    ]
    becomes(lambda: [each[:4] for each in listed()], [each[:4] for each in expected], "all replicas to be reported")
    becomes(lambda: {each[5] for each in listed()}, {0}, "all replicas to have caught up")
    addresses = {each["node"]: each["address"] for each in shown(run, "partitions", "list")}
    assert addresses == {process.name: process.target for process in fleet.processes if process.name != "router"}
    assert [each["partition"] for each in shown(run, "partitions", "list", "--node", "b")] == [0]


@pytest.mark.feature("alerts-recording-rules")
def test_the_commands_of_the_runbooks_work_here(
    run: Run, fleet: Fleet, router: ServerProcess, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but a drain, a controller, which runs until it is stopped, and `verify`, which needs batches of Spark."""
    key = fleet.keys_in(0)[0]
    poll_until(lambda: router.get(key).found, 30, "a lookup to be answered")
    names = {"STORE": STORE, "KEY": key}
    create_topic(kafka.bootstrap, dead_letters_topic(fleet.application_id), 1)
    monkeypatch.setenv("STATEHOUSE_APPLICATION_ID", fleet.application_id)
    monkeypatch.setenv("STATEHOUSE_BOOTSTRAP", kafka.bootstrap)
    left_out = {"nodes drain NODE", "controller --standby", "verify STORE", "verify STORE --restore"}
    typed = set(runbook_commands()) - left_out
    assert "restore --watch" in typed
    for command in sorted(typed):
        done = run(*(names.get(word, word) for word in command.split()))
        assert done.exit_code == ExitCode.DONE, (command, done.stderr)
        assert "error" not in done.stderr, command


@pytest.mark.feature("live-view-nodes")
def test_top_shows_a_running_fleet_and_its_lookups(
    run: Run, fleet: Fleet, router: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = shown(run, "top", "--once")
    assert [(row["node"], row["actives"], row["standbys"]) for row in view["nodes"]] == [("a", 2, 0), ("b", 0, 1)]
    assert run("top").stdout.startswith(f"{fleet.application_id} at {router.target}")  # no terminal: one view
    top = Terminal("top", "--interval", "0.2")
    try:
        top.wait_for("2 of 2 nodes well")
        top.wait_for("tasks: 2 running")
        top.wait_for("lookups: 0/s")
        for _ in range(100):
            router.get(fleet.keys_in(0)[0])
        top.wait_for("lookups: ")
        top.press("q")
        assert top.ended() == ExitCode.DONE
    finally:
        top.close()


@pytest.mark.feature("restores-followed-their")
def test_a_restore_is_watched_to_its_end(run: Run, fleet: Fleet, router: ServerProcess) -> None:
    limit_reads(fleet.bootstrap, client_id := f"{fleet.application_id}-c-restore", bytes_per_s=500)
    fleet.put(dict.fromkeys(fleet.keys_in(1, 4_000), "x"))  # a batch that never comes
    node = fleet.node("c")
    fleet.reassign(1, standbys=("c",))
    poll_until(lambda: "c" in restoring(router), 30, "the router to hear of the restore")
    node.freeze()
    watch = Terminal("restore", "--watch", "--interval", "0.1")
    try:
        watch.wait_for("c  0_1")  # by the router's word: the node doesn't answer
        (seen,) = shown(run, "restore")
        assert (seen["node"], seen["role"], seen["task"], seen["store"]) == ("c", "STANDBY", "0_1", None)
        limit_reads(fleet.bootstrap, client_id, bytes_per_s=1e9)
        node.kill()  # a client learns how long it is to wait, and doesn't ask before
        node.start()
        watch.wait_for("all restores have ended: ")
        assert watch.ended() == ExitCode.DONE
    finally:
        watch.close()
    fleet.wait_running([node])
    becomes(lambda: shown(run, "restore"), [], "the restore to end")


def restoring(router: ServerProcess) -> set[str]:
    """Return the nodes that restore, as the router has heard."""
    fleet = router.fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=5)
    replicas = (replica for task in fleet.tasks for replica in task.replicas)
    return {replica.instance_id for replica in replicas if replica.state == TaskState.RESTORING}
