"""What a lookup has been through, and whether its candidates are worth asking again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from router.table import Replica
from statehouse.errors import LookupFailure, Reason

_ROUNDS: Final = 2
# About three seconds of pauses, in which processes that read the same topic have met, busy ones too.
_HAND_OVER_ROUNDS: Final = 30

PASSING: Final = frozenset(
    {
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.NOT_ACTIVE,
        Reason.ACTIVE_UNCONFIRMED,
        Reason.NODE_SHUTTING_DOWN,
        Reason.ROUTING_NOT_READY,
        Reason.UNREACHABLE,
        Reason.ATTEMPT_TIMED_OUT,
        Reason.UNKNOWN_ADDRESS,
        Reason.UNKNOWN_STORE,
        Reason.POSITION_NOT_REACHED,
    }
)
"""Failures that pass by themselves: ownership moves, nodes restart, a table is a moment old."""


@dataclass(slots=True)
class AttemptRecord:
    """One call to a replica, for the account of a lookup. Times are of one monotonic clock, in seconds.

    `ended_at` None: it is under way. `outcome`: its answer or failure; None while it is under way, and for one that was
    given up because another replica answered first.
    """

    replica: Replica
    round: int
    is_hedge: bool
    sent_at: float
    ended_at: float | None = None
    outcome: bytes | LookupFailure | None = None

    def end(self, now: float, outcome: bytes | LookupFailure | None) -> None:
        """Note what became of it."""
        self.ended_at, self.outcome = now, outcome


@dataclass(slots=True)
class Progress:
    """What a lookup has been through. Failures are by instance id, in the order they happened."""

    failures: dict[str, tuple[Replica, LookupFailure]] = field(default_factory=dict)
    """Each candidate's first."""
    latest: dict[str, LookupFailure] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)
    """Those of the tables that were used, and of the nodes that said theirs."""
    is_hedged: bool = False
    """The one hedge was sent, or there was none to send."""
    refused: str = ""
    """What the retry budget did not allow: "hedge" or "retry"."""
    attempts: list[AttemptRecord] | None = None
    """All calls in the order they were sent; None keeps no account of them, as most lookups need none."""
    _times_late: dict[str, int] = field(default_factory=dict)

    def note(self, replica: Replica, failure: LookupFailure) -> None:
        """Take a failure."""
        name = replica.instance_id
        self.failures.setdefault(name, (replica, failure))
        self.latest[name] = failure
        if failure.reason is Reason.ATTEMPT_TIMED_OUT:
            self._times_late[name] = self.times_late(name) + 1
        if failure.route is not None:
            self.epochs.add(failure.route.epoch)

    def times_late(self, instance_id: str) -> int:
        """Return how many attempts at a node ran out of time."""
        return self._times_late.get(instance_id, 0)

    @property
    def newest_epoch(self) -> int:
        """The newest epoch met, 0 before any."""
        return max(self.epochs, default=0)

    @property
    def overloaded(self) -> set[str]:
        """Who said that it is overloaded: never asked again in this lookup."""
        return {name for name, failure in self.latest.items() if failure.reason is Reason.OVERLOADED}

    @property
    def furthest(self) -> LookupFailure | None:
        """Of the replicas that had yet to reach the position, what the one that was the furthest said."""
        said = [*self.latest.values(), *(first for _, first in self.failures.values())]
        behind = [failure for failure in said if failure.reason is Reason.POSITION_NOT_REACHED]
        return max(behind, key=lambda failure: int(failure.metadata.get("position", "0")), default=None)

    @property
    def passes(self) -> bool:
        """Whether all that was said last passes by itself."""
        return all(failure.reason in PASSING for failure in self.latest.values())

    def goes_on_after(self, rounds: int) -> bool:
        """Whether the candidates are worth asking again after so many rounds, as far as there is time."""
        reasons = {failure.reason for failure in self.latest.values()}
        if Reason.ATTEMPT_TIMED_OUT in reasons:
            return True
        if not self.passes:
            return False
        if Reason.POSITION_NOT_REACHED in reasons:
            return True
        return rounds < (_HAND_OVER_ROUNDS if len(self.epochs) > 1 else _ROUNDS)
