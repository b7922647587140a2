"""Where a restore takes its state from, by estimates; and who can give it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_service.states.given import KEPT_S, LONGEST_S, REUSED_S, is_over, is_reusable, most_given
from query_service.states.sources import (
    PEERS_MAX,
    LeftToRead,
    Peer,
    Rates,
    is_cheaper,
    is_too_slow,
    is_worth_asking,
    offered_within_s,
    peers_of,
)
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import GlobalReport, Member, NodeState, StorePosition, TaskState
from statehouse.contract.topology import AnyTaskId, GlobalId, TaskId
from tests.support.members import FakeMember

TASK = TaskId(0, 3)
STORE = "scores"
RATES = Rates(log_records_s=100_000, file_bytes_s=100e6)
MUCH = LeftToRead(0, 10_000_000)  # 100 s


def member(name: str, position: int = 100, state: str = TaskState.RUNNING, **changes: str) -> Member:
    fake = FakeMember(name, STORE)
    fake.report(TASK, position=position, state=state)
    return replace(fake.beat(), host=name, port=7101, **changes)


def asked(*members: Member, active: str = "", task: AnyTaskId = TASK, partition: int = 3) -> list[str]:
    assignment = Assignment(1, tasks=MappingProxyType({TASK: TaskAssignment(active or None)}))
    found = peers_of(assignment, {each.instance_id: each for each in members}, "me", task, STORE, partition)
    assert all(each.address == f"{each.name}:7101" for each in found)
    return [each.name for each in found]


def test_standbys_are_asked_before_the_active_and_the_newest_first() -> None:
    members = [member("a", 500), member("b", 100), member("c", 300)]
    assert asked(*members, active="a") == ["c", "b", "a"]
    assert asked(*members) == ["a", "c", "b"]


def test_who_has_not_restored_it_or_leaves_is_not_asked() -> None:
    assert asked(member("a", state=TaskState.RESTORING), member("b", state=TaskState.CLOSED)) == []
    assert asked(member("a", state=NodeState.PENDING_SHUTDOWN)) == []
    assert asked(member("me")) == []
    assert peers_of(None, {}, "me", TASK, STORE, 3) == []
    leaving = replace(member("a"), state=NodeState.PENDING_SHUTDOWN)
    assert asked(leaving, member("b")) == ["b"]


def test_few_are_asked() -> None:
    assert len(asked(*(member(f"n{number}") for number in range(20)))) == PEERS_MAX


def test_copies_of_a_global_store_are_peers() -> None:
    report = GlobalReport(TaskState.RUNNING, MappingProxyType({0: StorePosition(5), 1: StorePosition(6)}))
    has = replace(member("a"), global_replicas=MappingProxyType({STORE: report}))
    restores = replace(
        member("b"), global_replicas=MappingProxyType({STORE: replace(report, state=TaskState.RESTORING)})
    )
    assert asked(has, restores, member("c"), task=GlobalId(STORE), partition=1) == ["a"]
    assert asked(has, task=GlobalId(STORE), partition=2) == []


def test_an_address_of_ipv6_has_brackets() -> None:
    has = replace(member("a"), host="::1", incarnation="run")
    assert peers_of(None, {"a": has}, "me", TASK, STORE, 3) == [Peer("a", "[::1]:7101", "run")]


@pytest.mark.parametrize(
    ("missing", "position", "is_best"),
    [
        (0, 10_000_000, True),  # all there, and at the end
        (1_000_000_000, 10_000_000, True),  # 10 s
        (10_000_000_000, 10_000_000, False),  # 100 s
        (1_000_000_000, 1_000_000, False),  # 10 s, and 90 s of the log
        (100_000_000, 1_000_000, True),
    ],
)
def test_the_cheapest_is_taken(missing: int, position: int, is_best: bool) -> None:
    assert is_cheaper(missing, position, MUCH, RATES) is is_best


@given(st.integers(0, 10**12), st.integers(0, 10**7), st.integers(0, 10**7))
def test_what_is_nearer_to_the_end_or_smaller_is_never_dearer(missing: int, position: int, own: int) -> None:
    if is_cheaper(missing, position, LeftToRead(own, 10**7), RATES):
        assert is_cheaper(missing // 2, position, LeftToRead(own, 10**7), RATES)
        assert is_cheaper(missing, min(position + 1_000, 10**7), LeftToRead(own, 10**7), RATES)
        assert is_cheaper(missing, position, LeftToRead(max(0, own - 1_000), 10**7), RATES)
        assert position > own, "a state that is no newer is never fetched"


def test_little_is_read_without_asking() -> None:
    assert not is_worth_asking(LeftToRead(5, 5), Rates(), 0.0)
    assert not is_worth_asking(LeftToRead(10, 5), Rates(), 0.0)
    assert not is_worth_asking(LeftToRead(0, 99_000), RATES, 1.0)
    assert is_worth_asking(LeftToRead(0, 100_000), RATES, 1.0)


def test_a_slow_peer_is_given_time_and_then_compared_with_the_log() -> None:
    assert not is_too_slow(1, 10**12, 4.0, MUCH, RATES)
    assert is_too_slow(10**6, 10**9, 10.0, MUCH, RATES)  # 10,000 s
    assert not is_too_slow(10**9, 10**10, 10.0, MUCH, RATES)  # 100 s, as long as the log
    assert is_too_slow(0, 10**10, 10.0, MUCH, RATES)
    assert not is_too_slow(10**9, 0, 1_000.0, LeftToRead(0, 1), RATES)


def test_an_offer_may_take_as_long_as_the_log() -> None:
    assert offered_within_s(MUCH, RATES) == 100.0
    assert 1.0 < offered_within_s(LeftToRead(0, 1), RATES) < 60.0, "a node that is busy is heard"
    assert offered_within_s(LeftToRead(0, 10**12), RATES) < 3_600.0


def test_rates_follow_what_is_measured() -> None:
    assert RATES.read(1_000_000, 1.0).log_records_s == 550_000
    assert RATES.fetched(300_000_000, 1.0).file_bytes_s == 200e6
    for nothing in (RATES.read(0, 1.0), RATES.read(10, 0.01), RATES.fetched(0, 1.0), RATES.fetched(10, 0.01)):
        assert nothing == RATES


def test_a_checkpoint_for_others_is_kept_while_it_is_read() -> None:
    assert is_reusable(0.0, REUSED_S)
    assert not is_reusable(0.0, REUSED_S + 1)
    assert not is_over(0.0, 3_000.0, 3_000.0 + KEPT_S)
    assert is_over(0.0, 0.0, KEPT_S + 1)
    assert is_over(0.0, LONGEST_S, LONGEST_S + 1)
    assert most_given(1) < most_given(100) < 100
