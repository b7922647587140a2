"""Looking ahead: the steps of a change, and what may be asked."""

from __future__ import annotations

from collections import Counter

import pytest

from processor.ownership.planning.forecast import Forecast, forecast
from processor.ownership.planning.model import NodeView, ReplicaView
from processor.ownership.preview import added_nodes, preview
from processor.ownership.topics.observed import ObservedFleet
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.topology import StoreSpec, TaskId
from statehouse.errors import ConfigurationError
from tests.support.members import FakeMember
from tests.support.settings import ownership, planner
from tests.unit.processor.ownership.machine.test_core import SETTINGS, Bench, fleet, scores

CAUGHT_UP = ReplicaView(restored=True, lag=0)
T0, T1 = TaskId(0, 0), TaskId(0, 1)
NODES = {"n0": NodeView(replicas={T0: CAUGHT_UP, T1: CAUGHT_UP})}
CURRENT = {T0: TaskAssignment("n0"), T1: TaskAssignment("n0")}
NO_STANDBYS = planner(num_standby_replicas=0)


def words(made: Forecast) -> list[list[str]]:
    return [[f"{change.task}: {change.now.reason}" for change in step] for step in made.steps]


def test_a_move_takes_a_warm_up_a_promotion_and_a_drop() -> None:
    made = forecast(NODES, CURRENT, NO_STANDBYS, added={"n1": NodeView()})
    assert words(made) == [
        ["0_0: warm-up on n1: the active is to move there from n0, for balance"],
        ["0_0: active from n0 to n1: for balance, n1 is restored, lag 0"],
        ["0_0: standby on n0 dropped: the copies that stay are as good"],
    ]
    assert made.steps[-1][0].now.replicas == ("n1",)
    assert [(load.node, load.actives, load.standbys) for load in made.after] == [("n0", 1, 0), ("n1", 1, 0)]
    assert [(load.node, load.actives) for load in made.before] == [("n0", 2)]
    assert made.is_complete


def test_a_node_to_be_removed_serves_until_others_do() -> None:
    nodes = NODES | {"n1": NodeView()}
    made = forecast(nodes, CURRENT, NO_STANDBYS, removed=["n0"])
    first, second, *_ = made.steps
    assert [(change.now.active, change.now.warm_ups) for change in first] == [("n0", ("n1",))] * 2
    assert [change.now.active for change in second] == ["n1"] * 2
    assert {change.task: change.now.replicas for step in made.steps for change in step} == {T0: ("n1",), T1: ("n1",)}
    assert [load.node for load in made.after] == ["n1"]


def test_nothing_to_do_is_no_step() -> None:
    made = forecast(NODES, CURRENT, NO_STANDBYS)
    assert made.steps == ()
    assert made.is_complete


def test_a_forecast_is_bounded_and_says_so() -> None:
    made = forecast(NODES, CURRENT, NO_STANDBYS, added={"n1": NodeView()}, steps_max=1)
    assert len(made.steps) == 1
    assert not made.is_complete


@pytest.mark.parametrize("leaves", [False, True])
def test_the_controller_does_what_was_forecast(*, leaves: bool) -> None:
    members = fleet(3)
    bench = Bench(scores(12)).settled(*members)
    joining = FakeMember("n3", rack="", capacity=2)
    made = forecast(
        bench.core._sessions.nodes(),
        bench.assignment.tasks,
        SETTINGS.planner,
        added={"n3": NodeView(capacity=2)},
        removed=["n0"] if leaves else [],
    )
    if leaves:
        members[0].state = "PENDING_SHUTDOWN"
        bench.run(20, *members, joining)
        assert "n0" not in bench.actives().values()
        bench.core.left("n0", bench.now)
        members.pop(0)
    bench.run(40, *members, joining)
    assert bench.is_quiet
    reached = Counter(holders.active for holders in bench.assignment.tasks.values())
    assert {load.node: load.actives for load in made.after} == reached
    replicas = Counter(node for holders in bench.assignment.tasks.values() for node in holders.replicas)
    assert {load.node: load.actives + load.standbys for load in made.after} == replicas
    assert len(made.steps) <= len(bench.published), "the controller takes more where copies linger"


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ("n4", NodeView()),
        ("n4:capacity=2,rack=a", NodeView("a", capacity=2)),
        ("n4:rack=a", NodeView("a")),
    ],
)
def test_a_node_to_be_added_is_read(given: str, node: NodeView) -> None:
    assert added_nodes([given]) == {"n4": node}


@pytest.mark.parametrize("given", ["", ":rack=a", "n4:capacity=0", "n4:capacity=two", "n4:zone=a", "n4:capacity"])
def test_what_is_no_node_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="is not NAME"):
        added_nodes([given])


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        ([], ["n9"], "no live node of that name; live are n0, n1"),
        (["n0"], [], "there is a live node of that name; live are n0, n1"),
        (["n2", "n2:rack=a"], [], "names n2 twice"),
        ([], ["n0", "n1"], "no node would be left"),
    ],
)
def test_a_change_that_cannot_be_is_refused(added: list[str], removed: list[str], message: str) -> None:
    observed = ObservedFleet("app", Assignment(), {"n0": NodeView(), "n1": NodeView()}, ownership())
    with pytest.raises(ConfigurationError, match=message):
        preview(observed, added_nodes(added), removed)


def test_a_sub_topology_without_stores_has_no_tasks() -> None:
    stores = {"s": StoreSpec("s", "topic", 1, 0, ephemeral=True)}
    tasks = {T0: TaskAssignment("n0"), TaskId(1, 0): TaskAssignment()}
    observed = ObservedFleet("app", Assignment(stores=stores, tasks=tasks), {}, ownership())
    assert observed.tasks.keys() == observed.ephemeral == {T0}
