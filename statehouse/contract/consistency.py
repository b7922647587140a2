"""Freshness: whether a replica may answer a read. Pure.

One rule, `violation`, serves the node, which knows the truth at read time, and the router, which knows the last
heartbeat. They treat unknown values differently: at the node an unknown value satisfies no bound on it. The router
assumes the best possible value for everything that heartbeats don't tell (`ReplicaFreshness.reported`), because the
node decides again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from statehouse.contract.moments import MomentBound
from statehouse.contract.positions import Token
from statehouse.contract.topology import Role
from statehouse.contract.version_names import of_other_version, version_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Freshness:
    """The caller's bounds; None is unbounded. `at_least` bounds only the store partitions that it names.

    `moment` says which batch the answer is of, and `max_value_age_ms` bounds the age of what is in it. The others bound
    the replica that answers.
    """

    active_only: bool = False
    max_lag: int | None = None
    max_staleness_ms: int | None = None
    at_least: Token | None = None
    max_processor_age_ms: int | None = None
    max_input_backlog: int | None = None
    moment: MomentBound | None = None
    max_value_age_ms: int | None = None

    @classmethod
    def from_proto(cls, message: types_pb2.Freshness) -> Freshness:
        """Read the wire form.

        Raises:
            ValueError: a bound is negative, `at_least` or `moment` names too much, or `moment` nothing.

        """
        if not message.ByteSize():
            return ANY  # the usual case, made cheap
        max_lag = message.max_lag if message.HasField("max_lag") else None
        max_staleness_ms = message.max_staleness_ms if message.HasField("max_staleness_ms") else None
        max_processor_age_ms = message.max_processor_age_ms if message.HasField("max_processor_age_ms") else None
        max_input_backlog = message.max_input_backlog if message.HasField("max_input_backlog") else None
        max_value_age_ms = message.max_value_age_ms if message.HasField("max_value_age_ms") else None
        bounds = (max_lag, max_staleness_ms, max_processor_age_ms, max_input_backlog, max_value_age_ms)
        if any((each or 0) < 0 for each in bounds):
            raise ValueError("freshness bounds must not be negative")
        at_least = Token.from_proto(message.at_least) if message.HasField("at_least") else None
        moment = MomentBound.from_proto(message.moment) if message.HasField("moment") else None
        return cls(
            message.active_only,
            max_lag,
            max_staleness_ms,
            at_least,
            max_processor_age_ms,
            max_input_backlog,
            moment,
            max_value_age_ms,
        )

    def in_version(self, store: str, version: str) -> Freshness:
        """Return the bounds of a read of a store as servers of a version read them; `version`: as stamps have it.

        Raises:
            LookupFailure: VERSION_CHANGED, `at_least` has a position of the store in another version, or `moment` a
                batch of it.

        """
        if self.moment is not None and not self.moment.is_of(version):
            theirs = next(each for query_id in self.moment.token if (each := version_of(query_id)) != version)
            raise of_other_version("moment", theirs, version)
        return self if self.at_least is None else replace(self, at_least=self.at_least.in_version(store, version))

    @property
    def suits_any(self) -> bool:
        """Whether the caller bounded the answer's age, so that every replica within the bounds is equally good.

        The processor's age is the same behind every replica, so it says nothing of them.
        """
        return not self.active_only and (self.max_lag is not None or self.max_staleness_ms is not None)

    @property
    def may_wait(self) -> bool:
        """Whether the caller wants to see something that a well replica may have to wait for."""
        return self.at_least is not None or (self.moment is not None and self.moment.may_wait)


ANY = Freshness()
ANSWERS_AS_ACTIVE = frozenset({Role.ACTIVE, Role.GLOBAL})
"""Roles that satisfy `active_only`: every copy of a global store counts as an active."""
# Beyond every changelog's end, so that it reaches every position.
_REACHES_ALL: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReplicaFreshness:
    """The known freshness of a replica of a store partition; None is unknown.

    `confirmed`: the node has been in touch with Kafka within the session timeout. So no newer assignment can have taken
    its role away without its notice.
    """

    role: Role
    confirmed: bool
    lag: int | None
    staleness_ms: int | None
    position: int | None
    processor_age_ms: int | None = None
    input_backlog: int | None = None

    @classmethod
    def reported(cls, role: Role, lag: int | None, position: int | None) -> Self:
        """Return the freshness by a heartbeat, with the best possible values for all that it does not tell.

        A heartbeat tells neither staleness nor contact with Kafka, nor what the node knows of the processor. For a copy
        of a global store its position is a sum over partitions, which can't be compared with one partition's position.
        """
        position = _REACHES_ALL if role is Role.GLOBAL else position
        return cls(
            role, confirmed=True, lag=lag, staleness_ms=0, position=position, processor_age_ms=0, input_backlog=0
        )


def violation(bound: Freshness, replica: ReplicaFreshness, store: str, partition: int) -> tuple[Reason, str] | None:
    """Return why the replica of a store partition may not answer within the bound, None if it may.

    The first reason in this order counts: role, lag, staleness, processor age, input backlog, position. The position
    comes last because a request may wait for it: if it is the reason, nothing else is wrong.
    """
    broken = _role_violation(bound, replica) or _excess(bound, replica)
    if broken is not None:
        return broken
    if bound.at_least is not None and not bound.at_least.is_reached(store, partition, replica.position):
        wanted = bound.at_least.position(store, partition)
        return Reason.POSITION_NOT_REACHED, below(_shown(replica.position), wanted)
    return None


def not_reached(position: int | None, wanted: int) -> LookupFailure:
    """Return the failure of a replica that is at a position; None: unknown."""
    metadata = {"wanted": str(wanted)} | ({} if position is None else {"position": str(position)})
    return LookupFailure(Reason.POSITION_NOT_REACHED, below(_shown(position), wanted), metadata)


def below(position: str, wanted: int) -> str:
    """Say what a replica lacks that is at a position, as shown."""
    return f"position {position} is below the wanted {wanted}"


def _role_violation(bound: Freshness, replica: ReplicaFreshness) -> tuple[Reason, str] | None:
    if not bound.active_only:
        return None
    role = replica.role.name.lower()
    if replica.role not in ANSWERS_AS_ACTIVE:
        return Reason.NOT_ACTIVE, f"it is {role}, the active was demanded"
    if not replica.confirmed:
        message = f"this replica is {role}, but out of touch with Kafka for longer than the session timeout"
        return Reason.ACTIVE_UNCONFIRMED, message
    return None


def _excess(bound: Freshness, replica: ReplicaFreshness) -> tuple[Reason, str] | None:
    """Return the first figure that is beyond its bound, or unknown."""
    if _exceeds(replica.lag, bound.max_lag):
        return Reason.LAG_EXCEEDS_BOUND, f"lag {_shown(replica.lag)} exceeds max_lag {bound.max_lag}"
    if _exceeds(replica.staleness_ms, bound.max_staleness_ms):
        message = f"staleness {_shown(replica.staleness_ms)} ms exceeds max_staleness_ms {bound.max_staleness_ms}"
        return Reason.STALENESS_EXCEEDS_BOUND, message
    if _exceeds(replica.processor_age_ms, bound.max_processor_age_ms):
        age = _shown(replica.processor_age_ms)
        message = f"processor age {age} ms exceeds max_processor_age_ms {bound.max_processor_age_ms}"
        return Reason.PROCESSOR_AGE_EXCEEDS_BOUND, message
    if _exceeds(replica.input_backlog, bound.max_input_backlog):
        message = f"input backlog {_shown(replica.input_backlog)} exceeds max_input_backlog {bound.max_input_backlog}"
        return Reason.INPUT_BACKLOG_EXCEEDS_BOUND, message
    return None


def _exceeds(known: int | None, most: int | None) -> bool:
    """Whether a figure, None if unknown, breaks its bound, None if there is none."""
    return most is not None and (known is None or known > most)


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def refuse_too_old(freshness: types_pb2.Freshness, store: str, timestamps_ms: Iterable[int], now_ms: int) -> None:
    """Refuse values by the times of their records, epoch milliseconds; below zero: it has none.

    Raises:
        LookupFailure: VALUE_TOO_OLD.

    """
    if not freshness.HasField("max_value_age_ms"):
        return
    bound = freshness.max_value_age_ms
    oldest_ms = min(timestamps_ms, default=now_ms)
    if oldest_ms >= 0 and now_ms - oldest_ms <= bound:
        return
    age = f"is {now_ms - oldest_ms} ms old" if oldest_ms >= 0 else "has no time"
    raise LookupFailure(
        Reason.VALUE_TOO_OLD,
        f"a value of store {store} {age}, max_value_age_ms is {bound}",
        {"store": store, "max_value_age_ms": str(bound)},
    )
