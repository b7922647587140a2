"""Which replicas a lookup asks, in which order, and why not the others. Pure.

Each replica gets a verdict with a reason, as ksqlDB's `RoutingFilter`s give one. There are three, not two:

- INCLUDED: by all that is known it can answer;
- LAST: something known speaks against it, but what is known is a heartbeat old and may no longer be true. It is
  asked when no included replica answered, because the node checks everything again at read time, and a stale
  heartbeat must never fail a lookup that a node could have answered. This goes for a reported restore, failure,
  lag or position, and for a node that recently answered late or not at all;
- EXCLUDED: asking can't help: there is no address to call, or the caller demands the active and this is not it.

Order: the active, then standbys by least lag (copies of a global store in turn), then the LAST ones, those that will
say no at once before those that may keep the caller waiting. KIP-535's pattern, with the exclusions turned into a
preference. A caller who says how old an answer may be is content with any replica within that: those in the router's
rack come first then, as KIP-392 has consumers fetch from the closest replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from router.table import PartitionRoutes, Replica
from statehouse.consistency import ANSWERS_AS_ACTIVE, Freshness
from statehouse.errors import Reason
from statehouse.positions import Token
from statehouse.topology import Role
from statehouse.v1 import errors_pb2, types_pb2

_LAST_NOTE = "asked last, in case that has changed"


class Severity(Enum):
    """How bad a node is to wait for: it answers, only late; it gives no answer; nobody listens."""

    SLOW = 1
    SILENT = 2
    DOWN = 3


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a node is asked last: ATTEMPT_TIMED_OUT (slow or silent) or UNREACHABLE (down).

    `late_after_s`: only of a node that is slow: an answer in this time shows that it no longer is.
    """

    reason: Reason
    detail: str
    late_after_s: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the node does answer."""
        return self.late_after_s is not None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        if self.reason is Reason.UNREACHABLE:
            return Severity.DOWN
        return Severity.SLOW if self.is_slow else Severity.SILENT

    def ends_with_answer_in(self, took_s: float) -> bool:
        """Whether an answer that took this long ends it."""
        return self.late_after_s is None or took_s <= self.late_after_s


class Standing(Enum):
    """A replica's place in a lookup."""

    INCLUDED = 0
    LAST = 1
    EXCLUDED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a replica in a lookup, and why; no reason for an included one."""

    replica: Replica
    standing: Standing
    reason: Reason | None = None
    detail: str = ""
    waits: int = 0
    """0: it will answer or refuse at once; else the severity of what its node is suspected of."""

    def to_proto(self) -> errors_pb2.Candidate:
        """Return the wire form."""
        replica = self.replica
        return errors_pb2.Candidate(
            host=replica.host(),
            role=types_pb2.ReplicaRole.ValueType(replica.role.value),
            eligible=self.standing is Standing.INCLUDED,
            reason=errors_pb2.ErrorReason.ValueType(self.reason or 0),
            detail=f"{self.detail}; {_LAST_NOTE}" if self.standing is Standing.LAST else self.detail,
            position=replica.position,
            lag=replica.lag,
        )


def judge(routes: PartitionRoutes, bound: Freshness, suspects: Mapping[str, Suspicion]) -> tuple[Verdict, ...]:
    """Return a verdict for every replica, in the order a lookup would ask them."""
    verdicts = (_verdict(replica, bound, suspects.get(replica.instance_id), routes) for replica in routes.replicas)
    is_by_rack = _is_by_rack(routes, bound)
    # Replicas come by preference and sorting is stable: only what the lookup adds is left to sort by.
    return tuple(
        sorted(verdicts, key=lambda each: (each.standing.value, each.waits, is_by_rack and not each.replica.is_near))
    )


def ask_order(
    routes: PartitionRoutes, bound: Freshness, suspects: Mapping[str, Suspicion], turn: int = 0
) -> tuple[Replica, ...]:
    """Return the replicas to ask, in order; equal to those not excluded by `judge`, and quick on a quiet fleet.

    Where the first ones are equals, `turn`, which callers count up, says which of them comes first.
    """
    is_bound = bound.active_only or bound.max_lag is not None or bound.at_least is not None
    if not (is_bound or suspects or _is_by_rack(routes, bound)):
        order, equals = routes.callable, routes.equals
    else:
        verdicts = [verdict for verdict in judge(routes, bound, suspects) if verdict.standing is not Standing.EXCLUDED]
        order = tuple(verdict.replica for verdict in verdicts)
        equals = _equals([verdict.replica for verdict in verdicts if verdict.standing is Standing.INCLUDED])
    first = turn % equals if equals > 1 else 0
    return (*order[first:equals], *order[:first], *order[equals:]) if first else order


def _is_by_rack(routes: PartitionRoutes, bound: Freshness) -> bool:
    """Whether those in the router's rack come first."""
    return bound.suits_any and routes.has_near


def _equals(included: Sequence[Replica]) -> int:
    """Return how many of the first replicas are as good as each other: copies of a global store, near or far."""
    first = included[0] if included else None
    if first is None or first.role is not Role.GLOBAL:
        return 1
    return sum(replica.is_near == first.is_near for replica in included)


def has_reported(replica: Replica, at_least: Token, routes: PartitionRoutes) -> bool:
    """Whether a replica was last reported to have reached the positions: if not, it may keep the caller waiting."""
    if replica.role is Role.GLOBAL:
        return True  # its position is a sum over partitions
    return at_least.is_reached(routes.store, routes.partition, replica.position)


def _verdict(replica: Replica, bound: Freshness, suspicion: Suspicion | None, routes: PartitionRoutes) -> Verdict:
    if replica.node is None:
        return Verdict(
            replica,
            Standing.EXCLUDED,
            Reason.UNKNOWN_ADDRESS,
            "the assignment names it, but no heartbeat has told its address",
        )
    if bound.active_only and replica.role not in ANSWERS_AS_ACTIVE:
        detail = f"it is {replica.role.name.lower()}, the active was demanded"
        return Verdict(replica, Standing.EXCLUDED, Reason.NOT_ACTIVE, detail)
    if suspicion is not None:
        return Verdict(replica, Standing.LAST, suspicion.reason, suspicion.detail, suspicion.severity.value)
    doubt = _unfit(replica) or _behind(replica, bound, routes)
    return Verdict(replica, Standing.INCLUDED) if doubt is None else Verdict(replica, Standing.LAST, *doubt)


def _unfit(replica: Replica) -> tuple[Reason, str] | None:
    """Return why, by its last heartbeat, the replica answers nobody."""
    if replica.state is None:
        return Reason.PARTITION_RESTORING, "it has not reported this task yet"
    if replica.state == "error":
        return Reason.TASK_FAILED, "it reported that its task stopped with an error"
    if not replica.is_restored:
        return Reason.PARTITION_RESTORING, f"it reported its task as {replica.state}"
    if replica.role is Role.GLOBAL and replica.is_leaving:
        return Reason.NODE_SHUTTING_DOWN, "its node is leaving, and others are as good"
    return None


def _behind(replica: Replica, bound: Freshness, routes: PartitionRoutes) -> tuple[Reason, str] | None:
    """Return which bound the replica did not keep at its last heartbeat."""
    if bound.max_lag is not None and (replica.lag is None or replica.lag > bound.max_lag):
        shown = "unknown" if replica.lag is None else replica.lag
        return Reason.LAG_EXCEEDS_BOUND, f"its last reported lag, {shown}, exceeds max_lag {bound.max_lag}"
    if bound.at_least is not None and not has_reported(replica, bound.at_least, routes):
        shown = "unknown" if replica.position is None else replica.position
        wanted = bound.at_least.position(routes.store, routes.partition)
        return Reason.POSITION_NOT_REACHED, f"its last reported position, {shown}, is below the wanted {wanted}"
    return None
