"""Freshness at node and router: one rule, and by a heartbeat nobody is refused whom his node would let answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statehouse.consistency import Freshness, ReplicaFreshness, violation
from statehouse.errors import Reason
from statehouse.positions import Token
from statehouse.topology import Role

few = st.integers(0, 4)
unknown_or_few = st.none() | few
roles = st.sampled_from([Role.ACTIVE, Role.STANDBY, Role.WARM_UP, Role.GLOBAL])
replicas = st.builds(ReplicaFreshness, roles, st.booleans(), unknown_or_few, unknown_or_few, unknown_or_few)
bounds = st.builds(
    Freshness,
    st.booleans(),
    unknown_or_few,
    unknown_or_few,
    st.none() | few.map(lambda position: Token({("s", 0): position})),
)
_UNTOLD = {Reason.ACTIVE_UNCONFIRMED, Reason.STALENESS_EXCEEDS_BOUND}


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
        )
        assert _reason(bound, fresher) is None
