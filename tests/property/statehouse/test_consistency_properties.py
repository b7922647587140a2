"""Freshness at node and router: one rule, and by a heartbeat nobody is refused whom his node would let answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.consistency import Freshness, ReplicaFreshness, violation
from statehouse.contract.positions import Token
from statehouse.contract.topology import Role
from statehouse.errors import Reason

few = st.integers(0, 4)
unknown_or_few = st.none() | few
roles = st.sampled_from([Role.ACTIVE, Role.STANDBY, Role.WARM_UP, Role.GLOBAL])
replicas = st.builds(ReplicaFreshness, roles, st.booleans(), *[unknown_or_few] * 5)
bounds = st.builds(
    Freshness,
    st.booleans(),
    unknown_or_few,
    unknown_or_few,
    st.none() | few.map(lambda position: Token({("s", 0): position})),
    unknown_or_few,
    unknown_or_few,
)
_UNTOLD = {
    Reason.ACTIVE_UNCONFIRMED,
    Reason.STALENESS_EXCEEDS_BOUND,
    Reason.PROCESSOR_AGE_EXCEEDS_BOUND,
    Reason.INPUT_BACKLOG_EXCEEDS_BOUND,
}


def _reason(bound: Freshness, replica: ReplicaFreshness) -> Reason | None:
    broken = violation(bound, replica, "s", 0)
    return None if broken is None else broken[0]


@given(bounds, replicas)
def test_a_heartbeat_with_the_truth_refuses_nobody_whom_the_truth_does_not(
    bound: Freshness, replica: ReplicaFreshness
) -> None:
    at_node = _reason(bound, replica)
    at_router = _reason(bound, ReplicaFreshness.reported(replica.role, replica.lag, replica.position))
    if at_router is not None:
        assert at_node is not None
        assert at_node is at_router or at_node in _UNTOLD
    elif at_node is not None:
        assert at_node in _UNTOLD or (at_node is Reason.POSITION_NOT_REACHED and replica.role is Role.GLOBAL)


@given(bounds, replicas, few, few)
def test_a_fresher_replica_violates_no_more(bound: Freshness, replica: ReplicaFreshness, less: int, more: int) -> None:
    if _reason(bound, replica) is None:
        fresher = ReplicaFreshness(
            replica.role,
            confirmed=replica.confirmed,
            lag=None if replica.lag is None else max(0, replica.lag - less),
            staleness_ms=None if replica.staleness_ms is None else max(0, replica.staleness_ms - less),
            position=None if replica.position is None else replica.position + more,
            processor_age_ms=None if replica.processor_age_ms is None else max(0, replica.processor_age_ms - less),
            input_backlog=None if replica.input_backlog is None else max(0, replica.input_backlog - less),
        )
        assert _reason(bound, fresher) is None


@pytest.mark.feature("bounds-read-active")
@given(bounds, replicas)
def test_what_is_bounded_is_known_and_within_its_bound(bound: Freshness, replica: ReplicaFreshness) -> None:
    figures = {
        Reason.LAG_EXCEEDS_BOUND: (replica.lag, bound.max_lag),
        Reason.STALENESS_EXCEEDS_BOUND: (replica.staleness_ms, bound.max_staleness_ms),
        Reason.PROCESSOR_AGE_EXCEEDS_BOUND: (replica.processor_age_ms, bound.max_processor_age_ms),
        Reason.INPUT_BACKLOG_EXCEEDS_BOUND: (replica.input_backlog, bound.max_input_backlog),
    }
    broken = [
        reason for reason, (known, most) in figures.items() if most is not None and (known is None or known > most)
    ]
    reason = _reason(bound, replica)
    if reason in {Reason.NOT_ACTIVE, Reason.ACTIVE_UNCONFIRMED}:
        return
    assert reason in broken[:1] if broken else reason in {None, Reason.POSITION_NOT_REACHED}
