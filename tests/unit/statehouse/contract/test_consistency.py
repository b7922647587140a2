"""Freshness bounds: unknown never satisfies one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statehouse.contract.consistency import ANY, Freshness, ReplicaFreshness, violation
from statehouse.contract.positions import Token
from statehouse.contract.topology import Role
from statehouse.errors import Reason
from statehouse.v1 import types_pb2

FRESH = ReplicaFreshness(Role.ACTIVE, confirmed=True, lag=0, staleness_ms=10, position=7)
STANDBY = ReplicaFreshness(Role.STANDBY, confirmed=True, lag=5, staleness_ms=10, position=7)
LOST = ReplicaFreshness(Role.ACTIVE, confirmed=False, lag=0, staleness_ms=60_000, position=7)
COPY = ReplicaFreshness(Role.GLOBAL, confirmed=True, lag=3, staleness_ms=10, position=7)
LOST_COPY = ReplicaFreshness(Role.GLOBAL, confirmed=False, lag=3, staleness_ms=60_000, position=7)
FED = replace(FRESH, processor_age_ms=2_000, input_backlog=4)
UNKNOWN = ReplicaFreshness(Role.STANDBY, confirmed=True, lag=None, staleness_ms=None, position=None)


@pytest.mark.parametrize(
    ("bound", "replica", "reason"),
    [
        (ANY, UNKNOWN, None),
        (Freshness(active_only=True), FRESH, None),
        (Freshness(active_only=True), STANDBY, Reason.NOT_ACTIVE),
        (Freshness(active_only=True), LOST, Reason.ACTIVE_UNCONFIRMED),
        (Freshness(active_only=True), COPY, None),
        (Freshness(active_only=True, max_lag=2), COPY, Reason.LAG_EXCEEDS_BOUND),
        (Freshness(active_only=True), LOST_COPY, Reason.ACTIVE_UNCONFIRMED),
        (ANY, LOST_COPY, None),
        (Freshness(max_lag=5), STANDBY, None),
        (Freshness(max_lag=4), STANDBY, Reason.LAG_EXCEEDS_BOUND),
        (Freshness(max_lag=10**9), UNKNOWN, Reason.LAG_EXCEEDS_BOUND),
        (Freshness(max_staleness_ms=10), STANDBY, None),
        (Freshness(max_staleness_ms=9), STANDBY, Reason.STALENESS_EXCEEDS_BOUND),
        (Freshness(max_staleness_ms=10**9), UNKNOWN, Reason.STALENESS_EXCEEDS_BOUND),
        (Freshness(max_lag=0, max_staleness_ms=1000), FRESH, None),
        (Freshness(max_processor_age_ms=2_000, max_input_backlog=4), FED, None),
        (Freshness(max_processor_age_ms=1_999), FED, Reason.PROCESSOR_AGE_EXCEEDS_BOUND),
        (Freshness(max_processor_age_ms=10**9), FRESH, Reason.PROCESSOR_AGE_EXCEEDS_BOUND),
        (Freshness(max_input_backlog=3), FED, Reason.INPUT_BACKLOG_EXCEEDS_BOUND),
        (Freshness(max_input_backlog=10**9), FRESH, Reason.INPUT_BACKLOG_EXCEEDS_BOUND),
        (Freshness(max_processor_age_ms=0, max_input_backlog=0), FED, Reason.PROCESSOR_AGE_EXCEEDS_BOUND),
        (Freshness(max_staleness_ms=9, max_processor_age_ms=0), FED, Reason.STALENESS_EXCEEDS_BOUND),
        (Freshness(at_least=Token({("s", 1): 8}), max_input_backlog=3), FED, Reason.INPUT_BACKLOG_EXCEEDS_BOUND),
        (Freshness(at_least=Token({("s", 1): 7})), STANDBY, None),
        (Freshness(at_least=Token({("s", 1): 8})), STANDBY, Reason.POSITION_NOT_REACHED),
        (Freshness(at_least=Token({("s", 1): 1})), UNKNOWN, Reason.POSITION_NOT_REACHED),
        (Freshness(at_least=Token({("s", 1): 0})), UNKNOWN, None),
        (Freshness(at_least=Token({("s", 2): 8, ("other", 1): 8})), STANDBY, None),
        # A reason that no wait mends comes first.
        (Freshness(active_only=True, at_least=Token({("s", 1): 8})), STANDBY, Reason.NOT_ACTIVE),
        (Freshness(max_lag=4, at_least=Token({("s", 1): 8})), STANDBY, Reason.LAG_EXCEEDS_BOUND),
        (Freshness(max_staleness_ms=9, at_least=Token({("s", 1): 8})), STANDBY, Reason.STALENESS_EXCEEDS_BOUND),
    ],
)
def test_bounds(bound: Freshness, replica: ReplicaFreshness, reason: Reason | None) -> None:
    broken = violation(bound, replica, "s", 1)
    assert (broken and broken[0]) == reason


def test_wire_form() -> None:
    message = types_pb2.Freshness(max_lag=0)
    assert Freshness.from_proto(message) == Freshness(max_lag=0)
    assert Freshness.from_proto(types_pb2.Freshness()) == ANY
    token = Token({("s", 1): 7})
    assert Freshness.from_proto(types_pb2.Freshness(at_least=token.to_proto())) == Freshness(at_least=token)
    message = types_pb2.Freshness(max_processor_age_ms=0, max_input_backlog=0)
    assert Freshness.from_proto(message) == Freshness(max_processor_age_ms=0, max_input_backlog=0)
    for name in ("max_lag", "max_staleness_ms", "max_processor_age_ms", "max_input_backlog"):
        with pytest.raises(ValueError, match="negative"):
            Freshness.from_proto(types_pb2.Freshness(**{name: -1}))
