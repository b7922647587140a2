"""Choices of the planner, by example; what must hold of every plan is among the property tests."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from processor.ownership.planning.model import NodeView, ReplicaView
from processor.ownership.planning.planner import plan
from processor.ownership.planning.shares import exact_shares
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId
from tests.support.settings import planner

T0, T1, T2, T3 = (TaskId(0, partition) for partition in range(4))
CAUGHT_UP = ReplicaView(restored=True, lag=0)
NO_STANDBYS = planner(num_standby_replicas=0, max_warmup_replicas=1)


def node(rack: str = "", *, leaving: bool = False, **replicas: ReplicaView) -> NodeView:
    """A node that holds `t0=...`, `t1=...`."""
    return NodeView(rack, {TaskId(0, int(name[1:])): view for name, view in replicas.items()}, leaving)


def disk(lag: int | None) -> ReplicaView:
    return ReplicaView(restored=False, lag=lag)


def test_a_warm_up_in_progress_is_not_given_up_for_a_cheaper_one() -> None:
    nodes = {"n0": node(t0=CAUGHT_UP, t1=CAUGHT_UP), "n1": node(t0=disk(5), t1=disk(1_000_000))}
    current = {T0: TaskAssignment("n0"), T1: TaskAssignment("n0", (), ("n1",), "before")}
    assert plan([T0, T1], nodes, current, NO_STANDBYS).tasks == current


def test_a_caught_up_standby_is_preferred_to_a_warm_up() -> None:
    nodes = {"n0": node(t0=CAUGHT_UP, t1=CAUGHT_UP), "n1": node(t1=CAUGHT_UP)}
    current = {T0: TaskAssignment("n0"), T1: TaskAssignment("n0", ("n1",))}
    made = plan([T0, T1], nodes, current, planner())
    assert made.tasks[T1].active == "n1"
    assert made.tasks[T1].standbys == ("n0",)
    assert not any(holders.warm_ups for holders in made.tasks.values())


def test_what_a_node_kept_is_warmed_up_first() -> None:
    nodes = {"n0": node(t0=CAUGHT_UP, t1=CAUGHT_UP, t2=CAUGHT_UP), "n1": node(t2=disk(40_000), t1=disk(70_000))}
    current = {task: TaskAssignment("n0") for task in (T0, T1, T2)}
    made = plan([T0, T1, T2], nodes, current, NO_STANDBYS)
    assert [task for task, holders in made.tasks.items() if holders.warm_ups] == [T2]


def test_the_heir_is_restored_rather_than_near_and_near_rather_than_far() -> None:
    current = {T0: TaskAssignment("gone", ("n0", "n1"))}

    def heir(**views: ReplicaView) -> str | None:
        nodes = {name: node(t0=view) for name, view in views.items()}
        return plan([T0], nodes, current, planner(num_standby_replicas=2)).tasks[T0].active

    restored_far = ReplicaView(restored=True, lag=90_000)
    assert heir(n0=disk(1), n1=restored_far) == "n1"
    assert heir(n0=restored_far, n1=CAUGHT_UP) == "n1"
    assert heir(n0=disk(500), n1=disk(400)) == "n1"
    assert heir(n0=disk(None), n1=disk(400)) == "n1"
    assert heir(n0=disk(800_000), n1=disk(900_000), n2=restored_far) == "n2", "an unassigned one that still serves"


def test_an_active_that_must_move_evens_out_in_place_of_one_that_need_not() -> None:
    nodes = {name: node(t0=CAUGHT_UP, t1=CAUGHT_UP, t2=CAUGHT_UP, t3=CAUGHT_UP) for name in ("n0", "n1")}
    current = {
        T0: TaskAssignment("n0", ("n1",)),
        T1: TaskAssignment("n1", ("n0",)),
        T2: TaskAssignment("gone", ("n0", "n1")),
        T3: TaskAssignment("gone", ("n0",)),
    }
    made = plan([T0, T1, T2, T3], nodes, current, planner()).tasks
    assert [holders.active for holders in made.values()] == ["n0", "n1", "n1", "n0"]


@pytest.mark.feature("warm-ups-before")
def test_forced_promotions_are_outside_the_budget() -> None:
    tasks = [T0, T1, T2, T3]
    nodes = {"n0": node(**{f"t{task.partition}": CAUGHT_UP for task in tasks}), "n1": node(), "n2": node()}
    current = {task: TaskAssignment("gone", ("n0",)) for task in tasks}
    made = plan(tasks, nodes, current, planner(max_warmup_replicas=1))
    assert {holders.active for holders in made.tasks.values()} == {"n0"}
    assert all(len(holders.standbys) == 1 for holders in made.tasks.values()), "and so are the copies that are missing"


def test_actives_that_must_leave_are_warmed_up_before_those_that_might_move() -> None:
    nodes = {
        "n0": node(t0=CAUGHT_UP, t1=CAUGHT_UP, t2=CAUGHT_UP),
        "n1": node(t3=CAUGHT_UP, leaving=True),
        "n2": node(t0=disk(5)),
    }
    current = {T0: TaskAssignment("n0"), T1: TaskAssignment("n0"), T2: TaskAssignment("n0"), T3: TaskAssignment("n1")}
    made = plan([T0, T1, T2, T3], nodes, current, NO_STANDBYS)
    assert made.tasks[T3].warm_ups == ("n2",)
    assert "n1 is leaving" in made.tasks[T3].reason


@pytest.mark.feature("copies-task-different")
def test_copies_stand_in_distinct_racks() -> None:
    tasks = [TaskId(0, partition) for partition in range(12)]
    racks = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "c0": "c", "c1": "c"}
    nodes = {name: NodeView(rack) for name, rack in racks.items()}
    made = plan(tasks, nodes, {}, planner(num_standby_replicas=2))
    for holders in made.tasks.values():
        assert {racks[name] for name in holders.replicas} == {"a", "b", "c"}


@pytest.mark.feature("copies-task-different")
def test_a_rack_too_many_is_mended_by_a_warm_up() -> None:
    nodes = {"a0": node("a", t0=CAUGHT_UP), "a1": node("a", t0=CAUGHT_UP), "b0": node("b")}
    made = plan([T0], nodes, {T0: TaskAssignment("a0", ("a1",))}, planner())
    assert made.tasks[T0].warm_ups == ("b0",)
    assert "in place of a1" in made.tasks[T0].reason
    nodes["b0"] = node("b", t0=CAUGHT_UP)
    made = plan([T0], nodes, made.tasks, planner())
    assert set(made.tasks[T0].standbys) == {"a1", "b0"}
    made = plan([T0], nodes, made.tasks, planner(), lingering={T0})
    assert set(made.tasks[T0].standbys) == {"a1", "b0"}
    assert made.deferred == (T0,)
    made = plan([T0], nodes, made.tasks, planner())
    assert made.tasks[T0].standbys == ("b0",)


def test_an_active_that_answers_is_not_chased_by_one_a_little_nearer() -> None:
    current = {T0: TaskAssignment("n0", ("n1",), (), "before")}
    nodes = {
        "n0": node(t0=ReplicaView(restored=True, lag=60_000)),
        "n1": node(t0=ReplicaView(restored=True, lag=50_000)),
    }
    assert plan([T0], nodes, current, planner()).tasks == current


def test_ephemeral_tasks_stay_where_they_are_and_new_ones_even_out() -> None:
    nodes = {"n0": node(), "n1": node(), "n2": node()}
    tasks = [T0, T1, T2, T3]
    made = plan(tasks, nodes, {T0: TaskAssignment("n0"), T1: TaskAssignment("n0")}, planner(), ephemeral=tasks)
    assert [made.tasks[task].active for task in tasks] == ["n0", "n0", "n1", "n2"]
    assert made.under_replicated == ()
    joined = plan(tasks, {**nodes, "n3": node()}, made.tasks, planner(), ephemeral=tasks)
    assert joined.tasks == made.tasks, "a node that joins takes none: what is there would be forgotten"
    left = plan(tasks, {**nodes, "n0": node(leaving=True)}, made.tasks, planner(), ephemeral=tasks)
    assert sorted(str(holders.active) for holders in left.tasks.values()) == ["n1", "n1", "n2", "n2"]
    assert "n0 is leaving" in left.tasks[T0].reason
    lost = plan(tasks, {"n1": node(), "n2": node()}, made.tasks, planner(), ephemeral=tasks)
    assert [lost.tasks[task].replicas for task in (T0, T1)] == [("n1",), ("n2",)]
    assert "n0 is gone" in lost.tasks[T0].reason
    assert plan(tasks, {}, made.tasks, planner(), ephemeral=tasks).tasks == made.tasks


def test_a_store_whose_logging_was_disabled_loses_its_standbys() -> None:
    made = plan([T0], {"n0": node(), "n1": node()}, {T0: TaskAssignment("n0", ("n1",))}, planner(), (), [T0])
    assert made.tasks[T0].replicas == ("n0",)


@pytest.mark.feature("nodes-different-capacity")
def test_a_node_of_capacity_2_gets_twice_as_much() -> None:
    tasks = [TaskId(0, partition) for partition in range(40)]
    nodes = {"big": NodeView(capacity=2), "n0": NodeView(), "n1": NodeView(), "n2": NodeView()}
    made = plan(tasks, nodes, {}, planner()).tasks
    actives = Counter(holders.active for holders in made.values())
    standbys = Counter(node for holders in made.values() for node in holders.standbys)
    assert actives == standbys == {"big": 16, "n0": 8, "n1": 8, "n2": 8}
    alone = plan(tasks, nodes, {}, planner(), ephemeral=tasks).tasks
    assert Counter(holders.active for holders in alone.values()) == actives


def test_what_a_node_cannot_hold_goes_to_the_others() -> None:
    tasks = [TaskId(0, partition) for partition in range(12)]
    nodes = {"huge": NodeView(capacity=10), "n0": NodeView(), "n1": NodeView()}
    made = plan(tasks, nodes, {}, planner()).tasks
    replicas = Counter(node for holders in made.values() for node in holders.replicas)
    assert replicas == {"huge": 12, "n0": 6, "n1": 6}, "no node holds a task twice"


def test_shares_are_rounded_by_the_largest_remainder_and_ties_move_nobody() -> None:
    shares = exact_shares(7, {"a": 1, "b": 1, "c": 3}, most=7)
    assert {node: Fraction(share, shares.one) for node, share in shares.of.items()} == {
        "a": Fraction(7, 5),
        "b": Fraction(7, 5),
        "c": Fraction(21, 5),
    }
    assert shares.rounded({}) == {"a": 2, "b": 1, "c": 4}
    assert shares.rounded({"a": 1, "b": 2}) == {"a": 1, "b": 2, "c": 4}
    assert exact_shares(7, {"a": 1, "b": 2}, most=7).rounded({"a": 7}) == {"a": 2, "b": 5}


def test_a_missing_standby_is_built_where_state_is_on_disk() -> None:
    nodes = {"n0": node(t0=CAUGHT_UP), "n1": node(), "n2": node(t0=disk(5))}
    made = plan([T0], nodes, {T0: TaskAssignment("n0")}, planner())
    assert made.tasks[T0].standbys == ("n2",)
    assert made.tasks[T0].reason == "standby on n2: a copy was missing, n2 has state to start from, lag 5"


def test_a_standby_that_is_not_caught_up_does_not_move_to_another_rack_yet() -> None:
    def warm_ups(standby: ReplicaView) -> tuple[str, ...]:
        nodes = {"n0": node("a", t0=CAUGHT_UP), "n1": node("a", t0=standby), "n2": node("b")}
        settings = planner(num_standby_replicas=1, max_warmup_replicas=1)
        return plan([T0], nodes, {T0: TaskAssignment("n0", ("n1",))}, settings).tasks[T0].warm_ups

    assert warm_ups(CAUGHT_UP) == ("n2",)
    assert warm_ups(disk(1_000_000)) == ()


def test_a_standby_in_another_rack_is_worth_more_than_a_shorter_restore() -> None:
    nodes = {"n0": node("a", t0=CAUGHT_UP), "n1": node("b", t0=disk(90_000)), "n2": node("a", t0=disk(5))}
    assert plan([T0], nodes, {T0: TaskAssignment("n0")}, planner()).tasks[T0].standbys == ("n1",)


def test_state_on_disk_is_no_reason_to_fill_a_node_beyond_its_share_but_a_copy_under_way_is() -> None:
    tasks = [TaskId(0, partition) for partition in range(5)]
    *first, last = tasks
    nodes = {
        "n0": node(t0=CAUGHT_UP, t1=CAUGHT_UP, t4=CAUGHT_UP),
        "n1": node(t2=CAUGHT_UP, t3=CAUGHT_UP),
        "n2": node(t0=CAUGHT_UP, t1=CAUGHT_UP, t2=CAUGHT_UP, t3=CAUGHT_UP, t4=disk(5)),
    }
    current = {task: TaskAssignment("n0" if task.partition < 2 else "n1", ("n2",)) for task in first}

    def standbys(*warm_ups: str) -> tuple[str, ...]:
        given = {**current, last: TaskAssignment("n0", (), warm_ups)}
        return plan(tasks, nodes, given, planner(num_standby_replicas=1)).tasks[last].standbys

    assert standbys() == ("n1",)
    assert standbys("n2") == ("n2",)
