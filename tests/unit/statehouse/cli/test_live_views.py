"""`statehouse restore --watch` and `top`: what moves, on a terminal and without one."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.cli.top_view import top_view
from statehouse.client.conversion import from_fleet
from statehouse.errors import LookupFailure, Reason
from tests.support.recorded_fleet import FLEET, RecordedFleet, recorded_fleet
from tests.support.terminal import Terminal

pytestmark = pytest.mark.timeout(60)  # views go on until somebody ends them

Run = Callable[..., Result]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordedFleet]:
    monkeypatch.chdir(tmp_path)
    with recorded_fleet() as running:
        monkeypatch.setenv("STATEHOUSE_ROUTER", running.router.target)
        yield running


@pytest.fixture
def run(fleet: RecordedFleet) -> Run:
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def restores(fleet: RecordedFleet, positions: Sequence[int]) -> None:
    """Let node-b restore one partition, at these positions of 120, and have ended at the next look."""
    node = fleet.nodes["node-b"]
    del node.said.tasks[1]
    left = iter(positions)

    def move() -> None:
        position = next(left, None)
        if position is None:
            node.said.tasks[0].state = "running"
            for task in fleet.fleet.tasks:
                for replica in task.replicas:
                    replica.state = "running"
        else:
            node.said.tasks[0].stores[0].position = position

    node.before_answer = move


@pytest.mark.feature("restores-followed-their")
def test_a_watch_without_a_terminal_has_a_line_at_intervals(run: Run, fleet: RecordedFleet) -> None:
    restores(fleet, [40, 80, 120])
    done = run("restore", "--watch", "--interval", "0.1")
    assert done.exit_code == ExitCode.DONE
    lines = done.stdout.splitlines()
    assert lines[0] == "node-b  boards/0  STANDBY  27%  80 left"
    assert lines[1].startswith("node-b  boards/0  STANDBY  64%  40 left, ")
    assert "/s, " in lines[1]
    assert lines[2].startswith("node-b  boards/0  STANDBY  100%  0 left, ")
    assert done.stderr.startswith("all restores have ended: 1 in ")


def test_a_watch_for_programs_has_a_line_of_json_at_intervals(run: Run, fleet: RecordedFleet) -> None:
    restores(fleet, [40, 80])
    done = run("restore", "--watch", "--interval", "0.1", "-o", "json")
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [[each["left"] for each in restoring] for restoring in shown] == [[80], [40], []]
    assert run("restore", "--watch", "-o", "yaml").exit_code == ExitCode.USAGE


def test_a_watch_ends_at_once_if_nothing_restores(run: Run, fleet: RecordedFleet) -> None:
    restores(fleet, [])
    done = run("restore", "-w")
    assert (done.stdout, done.stderr) == ("", "no restores are under way\n")


def test_a_watch_bears_a_router_that_is_away_for_a_while(run: Run, fleet: RecordedFleet) -> None:
    restores(fleet, [40, 80])
    answers: list[LookupFailure | None] = [None, LookupFailure(Reason.OVERLOADED, "too many"), None, None]
    take = fleet.router._take

    def fail_in_turn(*arguments: object) -> None:
        fleet.router.failure = answers.pop(0) if answers else None
        take(*arguments)  # type: ignore[arg-type]

    fleet.router._take = fail_in_turn  # type: ignore[method-assign]
    done = run("restore", "--watch", "--interval", "0.1", "-o", "json")
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [[each["left"] for each in restoring] for restoring in shown] == [[80], [80], [40], []]
    answers = [LookupFailure(Reason.OVERLOADED, "too many")]
    assert run("restore", "--watch").exit_code == ExitCode.UNAVAILABLE, "it has never answered"


def test_the_router_tells_of_nodes_that_can_not_be_reached(run: Run, fleet: RecordedFleet) -> None:
    fleet.fleet.nodes[1].host.port = 1
    shown = json.loads(run("restore", "-o", "json").stdout)
    assert [(each["task"], each["store"], each["left"]) for each in shown] == [("0_0", None, 80), ("0_1", None, None)]
    fleet.fleet.nodes[1].heartbeat_age_ms = 31_000
    assert json.loads(run("restore", "-o", "json").stdout) == [], "it is gone, and restores nothing"


def test_what_is_not_well_comes_first() -> None:
    view = top_view(from_fleet(FLEET), [], {"node-a": 10.0})
    assert [(row.node, row.is_well) for row in view.nodes] == [("node-b", False), ("node-a", True)]
    assert [row.task for row in view.tasks] == ["1_1", "0_1", "global/prices", "0_0", "1_0"]
    assert view.tasks_by_state == {"running": 4, "no active": 1}
    assert (view.lag, view.lookups_per_s) == (2, 10.0)
    assert top_view(from_fleet(FLEET), []).lookups_per_s is None


@pytest.fixture
def terminal(fleet: RecordedFleet) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*words: str) -> Terminal:
        opened.append(Terminal(*words))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.feature("live-view-nodes")
def test_top_goes_on_until_q(terminal: Callable[..., Terminal], fleet: RecordedFleet) -> None:
    top = terminal("top", "--interval", "0.2")
    top.wait_for("1 of 2 nodes well")
    fleet.nodes["node-a"].said.tasks[0].stores[0].lookups += 10_000
    top.wait_for("lookups: ")
    fleet.fleet.nodes[1].state = "RUNNING"
    top.wait_for("2 of 2 nodes well")
    fleet.router.failure = LookupFailure(Reason.OVERLOADED, "too many calls")
    top.wait_for("too many calls (seen ")
    fleet.router.failure = None
    top.wait_for("restores: 2")
    top.press("q")
    assert top.ended() == ExitCode.DONE


@pytest.mark.feature("live-view-nodes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, ExitCode.DONE), (signal.SIGTERM, ExitCode.TERMINATED)])
def test_top_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Terminal], number: signal.Signals, code: ExitCode
) -> None:
    top = terminal("top")
    top.wait_for("of 2 nodes well")
    top.process.send_signal(number)
    assert top.ended() == code


@pytest.mark.feature("restores-followed-their")
def test_bars_on_a_terminal_end_with_the_restores(terminal: Callable[..., Terminal], fleet: RecordedFleet) -> None:
    restores(fleet, [40, 80])
    watch = terminal("restore", "--watch", "--interval", "0.2")
    watch.wait_for("27%")
    watch.wait_for("64%")
    watch.wait_for("all restores have ended: 1 in ")
    assert watch.ended() == ExitCode.DONE
