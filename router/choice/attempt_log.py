"""The attempts of a lookup so far, and whether asking its candidates again may help. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from router.fleet.table import RoutedReplica
from statehouse.contract.epochs import newest
from statehouse.errors import LookupFailure, Reason

_ROUNDS: Final = 2
# About three seconds of pauses; by then even busy processes that read the same topic agree.
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
        Reason.MOMENT_NOT_REACHED,
        Reason.STORE_NOT_BUILT,
    }
)
"""Failures that pass on their own: ownership moves, nodes restart, a table is slightly old, a first batch ends."""

OF_NODE: Final = frozenset({Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT, Reason.OVERLOADED, Reason.NODE_SHUTTING_DOWN})
"""Failures of a node, not of a partition or a request: the node would not answer another call either."""

_BEYOND_BOUND: Final = frozenset(
    {
        Reason.LAG_EXCEEDS_BOUND,
        Reason.STALENESS_EXCEEDS_BOUND,
        Reason.PROCESSOR_AGE_EXCEEDS_BOUND,
        Reason.INPUT_BACKLOG_EXCEEDS_BOUND,
    }
)
"""Failures that pass once Kafka has told the replica where its log ends, and what the processor reported last.

Until then a node that was frozen or cut off refuses lookups that it can answer a moment later. A node that is still cut
off from Kafka refuses again, so each is asked only once more.
"""

_NOT_REACHED: Final = {Reason.POSITION_NOT_REACHED: "position", Reason.MOMENT_NOT_REACHED: "newest"}
"""Failures of replicas that are behind what the caller wants to see, and where each says how far it is."""

NO_MOMENT: Final = frozenset({Reason.MOMENT_GONE, Reason.MOMENTS_UNAVAILABLE})
"""Failures of replicas that will never show the batch. Another one may."""


@dataclass(slots=True)
class AttemptRecord:
    """One call to a replica, for a lookup that is explained or traced. Times are seconds of a monotonic clock.

    `ended_at` is None while the call is under way. `outcome`: its answer or failure; None while it is under way, and if
    it was given up because another replica answered first.
    """

    replica: RoutedReplica
    round: int
    is_hedge: bool
    sent_at: float
    ended_at: float | None = None
    outcome: bytes | LookupFailure | None = None


@dataclass(slots=True)
class AttemptLog:
    """A lookup's attempts so far. Failures are by instance id, in the order they happened."""

    failures: dict[str, tuple[RoutedReplica, LookupFailure]] = field(default_factory=dict)
    """Each candidate's first failure."""
    latest: dict[str, LookupFailure] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)
    """The epochs of the tables used, and those that nodes named in their failures."""
    is_hedged: bool = False
    """The lookup's one hedge was sent, or there was no replica to send it to."""
    refused: str = ""
    """The call that the retry budget refused: "hedge" or "retry"."""
    attempts: list[AttemptRecord] | None = None
    """All calls in the order they were sent, for an explained lookup; None for any other."""
    is_traced: bool = False
    """Whether calls are recorded though the lookup isn't explained."""
    calls: int = 0
    """How many there were."""
    _times_late: dict[str, int] = field(default_factory=dict)

    @property
    def is_explained(self) -> bool:
        """Whether the caller wants to know now what each candidate says."""
        return self.attempts is not None

    def note(self, replica: RoutedReplica, failure: LookupFailure) -> None:
        """Note a failure."""
        name = replica.instance_id
        self.failures.setdefault(name, (replica, failure))
        self.latest[name] = failure
        if failure.reason is Reason.ATTEMPT_TIMED_OUT:
            self._times_late[name] = self.times_late(name) + 1
        if failure.route is not None:
            self.epochs.add(failure.route.epoch)

    def begun(self, record: AttemptRecord) -> bytes:
        """Note a call that is about to be sent; return what to add to its request, serialized."""
        if self.attempts is not None:
            self.attempts.append(record)
        return b""

    def ended(self, record: AttemptRecord, now: float, outcome: bytes | LookupFailure | None) -> None:
        """Note what came of a call."""
        record.ended_at, record.outcome = now, outcome

    def times_late(self, instance_id: str) -> int:
        """Return how many attempts at a node timed out."""
        return self._times_late.get(instance_id, 0)

    @property
    def newest_epoch(self) -> int:
        """The newest epoch seen, 0 before the first."""
        return reduce(newest, self.epochs, 0)

    @property
    def overloaded(self) -> set[str]:
        """The nodes that answered OVERLOADED: they are not asked again in this lookup."""
        return {name for name, failure in self.latest.items() if failure.reason is Reason.OVERLOADED}

    @property
    def furthest(self) -> LookupFailure | None:
        """The failure of the furthest replica among those that had not reached the position, or the batch."""
        said = [*self.latest.values(), *(first for _, first in self.failures.values())]
        behind = [failure for failure in said if failure.reason in _NOT_REACHED]
        return max(
            behind, key=lambda failure: int(failure.metadata.get(_NOT_REACHED[failure.reason], "0")), default=None
        )

    @property
    def passes(self) -> bool:
        """Whether every candidate's last failure passes on its own."""
        return all(failure.reason in PASSING for failure in self.latest.values())

    @property
    def is_gone(self) -> bool:
        """Whether every candidate's last failure is that it doesn't have the batch any more."""
        return all(failure.reason is Reason.MOMENT_GONE for failure in self.latest.values())

    @property
    def has_late(self) -> bool:
        """Whether any candidate's last failure is a timeout."""
        return any(failure.reason is Reason.ATTEMPT_TIMED_OUT for failure in self.latest.values())

    def goes_on_after(self, rounds: int) -> bool:
        """Whether asking the candidates again may help, if there is time.

        `rounds`: number of rounds in which no candidate timed out. A frozen node said nothing in the other rounds.
        """
        if self.has_late:
            return True
        said = {failure.reason for failure in self.latest.values()}
        reasons = said - NO_MOMENT
        if (said and not reasons) or not reasons <= PASSING | _BEYOND_BOUND:
            return False
        if reasons & _BEYOND_BOUND:
            return rounds < _ROUNDS
        if reasons & _NOT_REACHED.keys():
            return True
        return rounds < (_HAND_OVER_ROUNDS if len(self.epochs) > 1 else _ROUNDS)
