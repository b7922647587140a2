"""The replicas that a lookup asks, their order, and why the others are not asked. Pure.

Each replica gets a verdict with a reason, as ksqlDB's `RoutingFilter`s give one. There are three, not two:

- INCLUDED: by everything known it can answer;
- LAST: a known fact speaks against it, but this is a heartbeat old and may no longer be true. It is asked when no
  included replica answered, because the node checks everything again at read time, and a stale heartbeat must never
  fail a lookup that a node could have answered. This goes for a reported restore, failure, lag or position, and for a
  node that recently answered late or not at all;
- EXCLUDED: asking can't help: there is no address to call, or the caller demands the active and this is not it.

Order: the active, then standbys by least lag (copies of a global store in turn), then the LAST ones: first those that
refuse immediately, then those that may make the caller wait. This is KIP-535's pattern, with exclusions turned into a
preference. A caller that bounds an answer's age accepts any replica within the bound: then replicas in the router's
rack come first, as KIP-392 lets consumers fetch from the closest replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from router.fleet.table import PartitionRoutes, RoutedReplica
from statehouse.contract.consistency import Freshness, ReplicaFreshness, violation
from statehouse.contract.membership import TaskState
from statehouse.contract.positions import Token
from statehouse.contract.topology import Role
from statehouse.errors import Reason
from statehouse.v1 import errors_pb2, types_pb2

_LAST_NOTE = "asked last, in case that has changed"
# A slow node answers. One that would refuse by its last report does so immediately: it may have changed. A silent node
# costs an attempt.
_REFUSES = 1.5


class Severity(Enum):
    """How bad it is to wait for a node: it answers late; it does not answer; no process listens."""

    SLOW = 1
    SILENT = 2
    DOWN = 3


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a node is asked last: ATTEMPT_TIMED_OUT (slow or silent) or UNREACHABLE (down).

    `late_after_s`: for a slow node only: an answer within this time shows that it is slow no longer.
    """

    reason: Reason
    detail: str
    late_after_s: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the node answers, though late."""
        return self.late_after_s is not None

    @property
    def severity(self) -> Severity:
        """The suspicion's severity."""
        if self.reason is Reason.UNREACHABLE:
            return Severity.DOWN
        return Severity.SLOW if self.is_slow else Severity.SILENT

    def ends_with_answer_in(self, took_s: float) -> bool:
        """Whether an answer that took this long ends the suspicion."""
        return self.late_after_s is None or took_s <= self.late_after_s


class Eligibility(Enum):
    """A replica's place in a lookup."""

    INCLUDED = 0
    LAST = 1
    EXCLUDED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a replica in a lookup, and its reason; an included replica has no reason."""

    replica: RoutedReplica
    eligibility: Eligibility
    reason: Reason | None = None
    detail: str = ""
    turn: float = 0
    """Which ones come before others with the same place: the severity of its node's suspicion, or `_REFUSES`."""

    def to_proto(self) -> errors_pb2.Candidate:
        """Return the wire form."""
        replica = self.replica
        return errors_pb2.Candidate(
            host=replica.host(),
            role=types_pb2.ReplicaRole.ValueType(replica.role.value),
            eligible=self.eligibility is Eligibility.INCLUDED,
            reason=errors_pb2.ErrorReason.ValueType(self.reason or 0),
            detail=f"{self.detail}; {_LAST_NOTE}" if self.eligibility is Eligibility.LAST else self.detail,
            position=replica.position,
            lag=replica.lag,
        )


def judge(routes: PartitionRoutes, bound: Freshness, suspects: Mapping[str, Suspicion]) -> tuple[Verdict, ...]:
    """Return a verdict on every replica, in the order in which a lookup would ask them."""
    verdicts = (_verdict(replica, bound, suspects.get(replica.instance_id), routes) for replica in routes.replicas)
    is_by_rack = _is_by_rack(routes, bound)
    # Replicas are in order of preference and sorting is stable: only the lookup's own criteria are left to sort by.
    return tuple(
        sorted(verdicts, key=lambda each: (each.eligibility.value, each.turn, is_by_rack and not each.replica.is_near))
    )


def ask_order(
    routes: PartitionRoutes, bound: Freshness, suspects: Mapping[str, Suspicion], turn: int = 0
) -> tuple[RoutedReplica, ...]:
    """Return the replicas to ask, in order; equal to those not excluded by `judge`, and quick on a quiet fleet.

    If the first ones are equally good, `turn`, which callers count up, chooses the first.
    """
    is_bound = bound.active_only or bound.max_lag is not None or bound.at_least is not None
    if not (is_bound or suspects or _is_by_rack(routes, bound)):
        order, equals = routes.callable, routes.equals
    else:
        verdicts = [
            verdict for verdict in judge(routes, bound, suspects) if verdict.eligibility is not Eligibility.EXCLUDED
        ]
        order = tuple(verdict.replica for verdict in verdicts)
        equals = _equals([verdict.replica for verdict in verdicts if verdict.eligibility is Eligibility.INCLUDED])
    first = turn % equals if equals > 1 else 0
    return (*order[first:equals], *order[:first], *order[equals:]) if first else order


def _is_by_rack(routes: PartitionRoutes, bound: Freshness) -> bool:
    """Whether replicas in the router's rack come first."""
    return bound.suits_any and routes.has_near


def _equals(included: Sequence[RoutedReplica]) -> int:
    """Return how many of the first replicas are equally good: copies of a global store, near or far."""
    first = included[0] if included else None
    if first is None or first.role is not Role.GLOBAL:
        return 1
    return sum(replica.is_near == first.is_near for replica in included)


def has_reported(replica: RoutedReplica, at_least: Token, routes: PartitionRoutes) -> bool:
    """Whether the replica's last report has reached the positions; if not, it may make the caller wait."""
    return at_least.is_reached(routes.store, routes.partition, _reported(replica).position)


def _reported(replica: RoutedReplica) -> ReplicaFreshness:
    return ReplicaFreshness.reported(replica.role, replica.lag, replica.position)


def _verdict(replica: RoutedReplica, bound: Freshness, suspicion: Suspicion | None, routes: PartitionRoutes) -> Verdict:
    if replica.node is None:
        return Verdict(
            replica,
            Eligibility.EXCLUDED,
            Reason.UNKNOWN_ADDRESS,
            "the assignment names it, but no heartbeat has told its address",
        )
    broken = violation(bound, _reported(replica), routes.store, routes.partition)
    if broken is not None and broken[0] is Reason.NOT_ACTIVE:  # roles come from the assignment, not from the heartbeat
        return Verdict(replica, Eligibility.EXCLUDED, *broken)
    if suspicion is not None:
        return Verdict(replica, Eligibility.LAST, suspicion.reason, suspicion.detail, suspicion.severity.value)
    if (unwell := unfit(replica)) is not None:
        return Verdict(replica, Eligibility.LAST, *unwell, turn=_REFUSES)
    if broken is not None:
        reason, detail = broken
        return Verdict(replica, Eligibility.LAST, reason, f"by its last heartbeat, {detail}", _REFUSES)
    return Verdict(replica, Eligibility.INCLUDED)


def unfit(replica: RoutedReplica) -> tuple[Reason, str] | None:
    """Return why, by its last heartbeat, the replica answers no lookup."""
    if replica.state is None:
        return Reason.PARTITION_RESTORING, "it has not reported this task yet"
    if replica.state == TaskState.ERROR:
        return Reason.TASK_FAILED, "it reported that its task stopped with an error"
    if not replica.is_restored:
        return Reason.PARTITION_RESTORING, f"it reported its task as {replica.state}"
    if replica.role is Role.GLOBAL and replica.is_leaving:
        return Reason.NODE_SHUTTING_DOWN, "its node is leaving, and others are as good"
    return None
