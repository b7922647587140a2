"""What holds for every fleet: no partition is lost, no key falls outside, taking over changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.choice.candidates import Eligibility, Suspicion, ask_order, judge
from router.fleet.table import compile_table
from router.fleet_api.describe import describe_key
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.consistency import ANSWERS_AS_ACTIVE, Freshness
from statehouse.contract.membership import GlobalReport, Member, ReplicaReport, StorePosition
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.errors import Reason
from statehouse.v1 import fleet_service_pb2, types_pb2

NAMES = ["a", "b", "c", "d", "e"]
STORES = ["s0", "s1"]
GLOBAL = "g"
RACKS = ["", "east", "west"]
racks = st.sampled_from(RACKS)
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
copies = st.builds(
    GlobalReport,
    st.sampled_from(["created", "restoring", "running", "error"]),
    st.dictionaries(st.integers(0, 9), positions),
)
bounds = st.builds(Freshness, st.booleans(), st.none() | st.integers(0, 50), st.none() | st.integers(0, 50))
# Drawing a fleet takes far longer than looking at one, and every run draws others.
few = settings(max_examples=40)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    count = draw(st.integers(1, 9))
    stores = {name: StoreSpec(name, f"{name}-changelog", count, 0) for name in STORES}
    stores[GLOBAL] = StoreSpec(GLOBAL, "source", draw(st.integers(1, 9)), 0, is_global=True)
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
            rack=draw(st.sampled_from(RACKS)),
            state=draw(st.sampled_from(["RUNNING", "REBALANCING", "PENDING_SHUTDOWN"])),
            replicas=draw(st.dictionaries(st.integers(0, 9).map(lambda number: TaskId(0, number)), reports)),
            global_replicas=draw(st.dictionaries(st.sampled_from([GLOBAL, "of another epoch"]), copies)),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    }


@few
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


@few
@given(assignments(), fleets(), st.binary(), st.sets(st.sampled_from(NAMES)))
def test_a_key_is_located_as_kafka_streams_tells_it(
    assignment: Assignment, members: dict[str, Member], key: bytes, suspects: set[str]
) -> None:
    """`queryMetadataForKey` (KIP-535): the partition, the active's host, the standbys' hosts, whatever their state."""
    table = compile_table(assignment, members)
    request = fleet_service_pb2.LocateKeyRequest(store=STORES[0], key=types_pb2.Key(raw=key))
    place = describe_key(table, request, dict.fromkeys(suspects, SUSPICION))
    partition = partition_for(key, assignment.stores[STORES[0]].partition_count)
    holders = assignment.tasks.get(TaskId(0, partition), TaskAssignment())
    assert (place.route.store, place.route.partition, place.route.epoch) == (STORES[0], partition, assignment.epoch)
    assert place.route.HasField("active") is (holders.active is not None)
    assert place.route.active.instance_id == (holders.active or "")
    assert {host.instance_id for host in place.route.standbys} == {*holders.standbys, *holders.warm_ups}
    for host in (place.route.active, *place.route.standbys):
        member = members.get(host.instance_id)
        known = ("", 0) if member is None or not member.host else (member.host, member.port)
        assert (host.host, host.port) == known
    assert sorted(candidate.host.instance_id for candidate in place.candidates) == sorted(holders.replicas)


@few
@given(assignments(), fleets(), st.binary())
def test_a_global_store_is_routed_to_all_who_report_it(
    assignment: Assignment, members: dict[str, Member], key: bytes
) -> None:
    table = compile_table(assignment, members)
    partitions = table.stores[GLOBAL].partitions
    assert [routes.partition for routes in partitions] == list(range(assignment.stores[GLOBAL].partition_count))
    holders = {name for name, member in members.items() if GLOBAL in member.global_replicas}
    for routes in partitions:
        assert {replica.instance_id for replica in routes.replicas} == holders
        assert all(replica.role is Role.GLOBAL for replica in routes.replicas)
        assert all(replica.lag is None or replica.lag >= 0 for replica in routes.replicas)
    assert table.locate(GLOBAL, key) in partitions


@few
@given(assignments(), fleets(), bounds, st.sets(st.sampled_from(NAMES)), st.integers(0, 50), racks)
def test_copies_of_a_global_store_take_turns(
    assignment: Assignment, members: dict[str, Member], bound: Freshness, suspects: set[str], start: int, rack: str
) -> None:
    routes = compile_table(assignment, members, rack=rack).stores[GLOBAL].partitions[0]
    unwell = dict.fromkeys(suspects, SUSPICION)
    orders = [ask_order(routes, bound, unwell, turn) for turn in range(start, start + 60)]
    included = {
        verdict.replica for verdict in judge(routes, bound, unwell) if verdict.eligibility is Eligibility.INCLUDED
    }
    for order in orders:
        assert sorted(order, key=str) == sorted(orders[0], key=str), "each once, whoever comes first"
        assert set(order[: len(included)]) == included, "the rest after those that can answer"
        assert order[len(included) :] == orders[0][len(included) :]
    firsts = [order[0] for order in orders if order]
    near = {replica for replica in included if replica.is_near} or included
    for replica in near:
        assert firsts.count(replica) == 60 / len(near), "and as often as the others"


@few
@given(assignments(), fleets(), fleets())
def test_a_table_made_from_the_one_before_equals_one_made_anew(
    assignment: Assignment, before: dict[str, Member], after: dict[str, Member]
) -> None:
    previous = compile_table(assignment, before)
    assert compile_table(assignment, after, previous) == compile_table(assignment, after)


@few
@given(assignments(), fleets(), bounds, st.sets(st.sampled_from(NAMES)), racks)
def test_every_replica_has_a_verdict_and_only_hopeless_ones_are_not_asked(
    assignment: Assignment, members: dict[str, Member], bound: Freshness, suspects: set[str], rack: str
) -> None:
    unwell = dict.fromkeys(suspects, SUSPICION)
    stores = compile_table(assignment, members, rack=rack).stores
    for routes in (*stores[STORES[0]].partitions, *stores[GLOBAL].partitions):
        verdicts = judge(routes, bound, unwell)
        assert {verdict.replica for verdict in verdicts} == set(routes.replicas)
        asked = [verdict.replica for verdict in verdicts if verdict.eligibility is not Eligibility.EXCLUDED]
        assert list(ask_order(routes, bound, unwell)) == asked
        for verdict in verdicts:
            assert (verdict.reason is None) is (verdict.eligibility is Eligibility.INCLUDED)
            if verdict.eligibility is Eligibility.EXCLUDED:
                hopeless = bound.active_only and verdict.replica.role not in ANSWERS_AS_ACTIVE
                assert verdict.replica.node is None or hopeless


def test_a_copy_of_a_global_store_that_is_at_all_ends_has_no_lag() -> None:
    assignment = Assignment(1, stores={GLOBAL: StoreSpec(GLOBAL, "source", 2, 0, is_global=True)}, tasks={})

    def lag(*positions: int) -> int | None:
        reported = {partition: StorePosition(at, 7) for partition, at in enumerate(positions)}
        member = Member("a", "x", "10.0.0.1", 1, global_replicas={GLOBAL: GlobalReport("running", reported)})
        return compile_table(assignment, {"a": member}).stores[GLOBAL].partitions[0].replicas[0].lag

    assert [lag(7, 7), lag(7, 4), lag(7)] == [0, 3, None]
