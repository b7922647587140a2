"""What holds for every fleet: no partition is lost, no key falls outside, taking over changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.choice import Standing, Suspicion, ask_order, judge
from router.table import compile_table
from statehouse.assignment import Assignment, TaskAssignment
from statehouse.consistency import Freshness
from statehouse.errors import Reason
from statehouse.membership import Member, ReplicaReport, StorePosition
from statehouse.topology import Role, StoreSpec, TaskId

NAMES = ["a", "b", "c", "d", "e"]
STORES = ["s0", "s1"]
SUSPICION = Suspicion(Reason.UNREACHABLE, "gone")

holders = st.lists(st.sampled_from(NAMES), unique=True, max_size=4).map(
    lambda names: TaskAssignment(names[0] if names else None, tuple(names[1:3]), tuple(names[3:]))
)
positions = st.builds(StorePosition, st.none() | st.integers(0, 100), st.none() | st.integers(0, 100))
reports = st.builds(
    ReplicaReport,
    st.sampled_from(Role),
    st.sampled_from(["created", "restoring", "running", "error", "closed", "from-the-future"]),
    st.dictionaries(st.sampled_from(STORES), positions),
)
bounds = st.builds(Freshness, st.booleans(), st.none() | st.integers(0, 50), st.none() | st.integers(0, 50))


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    count = draw(st.integers(1, 9))
    stores = {name: StoreSpec(name, f"{name}-changelog", count, 0) for name in STORES}
    # A task may be missing: its partition has no replica then, and must still be there.
    tasks = draw(st.dictionaries(st.integers(0, count - 1).map(lambda number: TaskId(0, number)), holders))
    return Assignment(draw(st.integers(1, 100)), stores=stores, tasks=tasks)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Member]:
    return {
        name: Member(
            name,
            draw(st.sampled_from(["x", "y"])),
            "" if draw(st.integers(0, 9)) == 0 else "10.0.0.1",
            draw(st.integers(1, 9)),
            replicas=draw(st.dictionaries(st.integers(0, 9).map(lambda number: TaskId(0, number)), reports)),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    }


@given(assignments(), fleets(), st.binary())
def test_owners_cover_every_partition_and_keys_fall_inside(
    assignment: Assignment, members: dict[str, Member], key: bytes
) -> None:
    table = compile_table(assignment, members)
    for name in STORES:
        partitions = table.stores[name].partitions
        assert [routes.partition for routes in partitions] == list(range(assignment.stores[name].partition_count))
        for routes in partitions:
            wanted = assignment.tasks.get(routes.task, TaskAssignment()).replicas
            found = [replica.instance_id for replica in routes.replicas]
            assert sorted(found) == sorted(wanted), "each holder exactly once"
            assert sum(replica.role is Role.ACTIVE for replica in routes.replicas) <= 1
            assert all(replica.lag is None or replica.lag >= 0 for replica in routes.replicas)
        assert table.locate(name, key) in partitions


@given(assignments(), fleets(), fleets())
def test_a_table_made_from_the_one_before_equals_one_made_anew(
    assignment: Assignment, before: dict[str, Member], after: dict[str, Member]
) -> None:
    previous = compile_table(assignment, before)
    assert compile_table(assignment, after, previous) == compile_table(assignment, after)


@given(assignments(), fleets(), bounds, st.sets(st.sampled_from(NAMES)))
def test_every_replica_has_a_verdict_and_only_hopeless_ones_are_not_asked(
    assignment: Assignment, members: dict[str, Member], bound: Freshness, suspects: set[str]
) -> None:
    unwell = dict.fromkeys(suspects, SUSPICION)
    for routes in compile_table(assignment, members).stores[STORES[0]].partitions:
        verdicts = judge(routes, bound, unwell)
        assert {verdict.replica for verdict in verdicts} == set(routes.replicas)
        asked = [verdict.replica for verdict in verdicts if verdict.standing is not Standing.EXCLUDED]
        assert list(ask_order(routes, bound, unwell)) == asked
        for verdict in verdicts:
            assert (verdict.reason is None) is (verdict.standing is Standing.INCLUDED)
            if verdict.standing is Standing.EXCLUDED:
                hopeless = bound.active_only and verdict.replica.role is not Role.ACTIVE
                assert verdict.replica.node is None or hopeless
