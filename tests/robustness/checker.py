"""Rules that every history must obey, whatever happened to the cluster. Pure; each function returns the violations.

Only times with a certain order are compared: a lookup is read at or after the time it was due, a write is readable
before we know that, and a router acts on an epoch before we hear of it. Everything ran on one machine, by one clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.contract.topology import Role
from tests.robustness.history import AT_LEAST, FaultRecord, History, LookupRecord, WriteRecord

# Ages in answers are whole milliseconds, and rounded.
_CLOCK_TOLERANCE_S: Final = 0.002
# After a fault: the nodes are as they should be, and the router still has to hear of it and to probe.
_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be: by which check, when in the run, and what."""

    check: str
    at: float
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at:.3f} s: {self.message}"


class Versions:
    """The committed versions of each key, and which of them had to be visible when."""

    def __init__(self, writes: Iterable[WriteRecord]) -> None:
        self._writes: dict[str, list[WriteRecord]] = defaultdict(list)
        for write in sorted(writes, key=lambda write: write.version):
            self._writes[write.key].append(write)
        self._acked = {key: [write.acked_at for write in found] for key, found in self._writes.items()}
        self._offsets = {key: [write.offset for write in found] for key, found in self._writes.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._writes

    def __len__(self) -> int:
        return len(self._writes)

    def acked_by(self, key: str, at: float) -> int:
        """Return the newest version that was known to be committed at a time; 0 if none was."""
        return self._version(key, bisect_right(self._acked[key], at))

    def below(self, key: str, position: int) -> int:
        """Return the newest version at an offset before a position; 0 if there is none."""
        return self._version(key, bisect_left(self._offsets[key], position))

    def last(self) -> dict[str, int]:
        """Return the last version of every key."""
        return {key: found[-1].version for key, found in self._writes.items()}

    def _version(self, key: str, count: int) -> int:
        return self._writes[key][count - 1].version if count else 0


def failed_lookups(history: History) -> list[Violation]:
    """No lookup fails, unless a fault was under way that leaves no replica within its bound."""
    return [
        Violation("failed lookup", lookup.due_at, f"{_who(lookup)}: {lookup.reason}: {lookup.message}")
        for lookup in history.lookups
        if not lookup.answered and not is_excused(lookup, history.faults)
    ]


def is_excused(lookup: LookupRecord, faults: Iterable[FaultRecord]) -> bool:
    """Whether a lookup failed, and may have: during a fault that says so of its bound."""
    return not lookup.answered and any(
        fault.began_at <= lookup.done_at
        and lookup.due_at <= fault.ended_at + _GRACE_S
        and lookup.bound in fault.may_fail
        for fault in faults
    )


def monotonic_reads(history: History) -> list[Violation]:
    """A client that carries a token never sees an older position of a partition, or an older version of a key, than it
    had seen when it asked."""
    found: list[Violation] = []
    by_client: dict[str, list[LookupRecord]] = defaultdict(list)
    for lookup in history.lookups:
        if lookup.bound == AT_LEAST and lookup.answered:
            by_client[lookup.client].append(lookup)
    for lookups in by_client.values():
        found += _falls(lookups, lambda each: each.partition, lambda each: each.position or 0, "position")
        found += _falls(lookups, lambda each: each.key, lambda each: each.version or 0, "version")
    for lookup in history.lookups:
        if lookup.answered and lookup.at_least is not None and (lookup.position or 0) < lookup.at_least:
            message = f"{_who(lookup)}: position {lookup.position}, at least {lookup.at_least} was asked for"
            found.append(Violation("monotonic reads", lookup.due_at, message))
    return found


def _falls(
    lookups: Sequence[LookupRecord],
    thing: Callable[[LookupRecord], Hashable],
    value: Callable[[LookupRecord], int],
    name: str,
) -> Iterator[Violation]:
    """Find answers below what was known of the same thing when they were asked for."""
    known: dict[Hashable, int] = {}
    ended = iter(sorted(lookups, key=lambda lookup: lookup.done_at))
    following = next(ended, None)
    for lookup in sorted(lookups, key=lambda lookup: lookup.due_at):
        while following is not None and following.done_at <= lookup.due_at:
            known[thing(following)] = max(known.get(thing(following), 0), value(following))
            following = next(ended, None)
        seen = known.get(thing(lookup), 0)
        if value(lookup) < seen:
            message = f"{_who(lookup)}: {name} {value(lookup)} of {thing(lookup)}, after {seen}"
            yield Violation("monotonic reads", lookup.due_at, message)


def bounds_kept(history: History) -> list[Violation]:
    """An answer's lag and staleness are known and within what was asked for, and one to an active-only lookup is the
    active's."""
    found = []
    for lookup in history.lookups:
        if not lookup.answered:
            continue
        broken = [
            f"{name} {value} exceeds {bound}"
            for name, value, bound in (
                ("lag", lookup.lag, lookup.max_lag),
                ("staleness", lookup.staleness_ms, lookup.max_staleness_ms),
            )
            if bound is not None and (value is None or value > bound)
        ]
        if lookup.bound == "active_only" and lookup.role != Role.ACTIVE.name:
            broken.append(f"answered by a {lookup.role}")
        found += [Violation("bound", lookup.due_at, f"{_who(lookup)}: {each}") for each in broken]
    return found


def true_stamps(history: History, versions: Versions) -> list[Violation]:
    """What an answer says of its freshness is so: it has what was committed before the age it admits to, and what
    stands below its position."""
    found = []
    for lookup in history.lookups:
        if not lookup.found or lookup.key not in versions:
            continue
        version = lookup.version or 0
        if lookup.staleness_ms is not None:
            until = lookup.due_at - lookup.staleness_ms / 1000 - _CLOCK_TOLERANCE_S
            owed = versions.acked_by(lookup.key, until)
            if version < owed:
                message = f"{_who(lookup)}: version {version}, stale by {lookup.staleness_ms} ms; {owed} was there then"
                found.append(Violation("staleness", lookup.due_at, message))
        if lookup.position is not None:
            owed = versions.below(lookup.key, lookup.position)
            if version < owed:
                message = f"{_who(lookup)}: version {version} at position {lookup.position}, below which {owed} stands"
                found.append(Violation("position", lookup.due_at, message))
    return found


def right_hosts(history: History, versions: Versions) -> list[Violation]:
    """Keys that exist are found and others are not; who answers holds the partition at the epoch it acts on, and is
    its active if it says so."""
    found = []
    epochs = {epoch.epoch: epoch for epoch in history.epochs}
    for lookup in history.lookups:
        if not lookup.answered:
            continue
        wrong = ""
        epoch = epochs.get(lookup.epoch)
        if lookup.found != (lookup.key in versions):
            wrong = f"found is {lookup.found}"
        elif epoch is None:
            wrong = f"epoch {lookup.epoch} was never published"
        elif lookup.host not in epoch.replicas[lookup.partition]:
            wrong = f"answered by {lookup.host}, which doesn't hold partition {lookup.partition} at {epoch.epoch}"
        elif lookup.role == Role.ACTIVE.name and lookup.host != epoch.actives[lookup.partition]:
            wrong = f"{lookup.host} claims to be active at {epoch.epoch}, where {epoch.actives[lookup.partition]} is"
        if wrong:
            found.append(Violation("wrong host", lookup.due_at, f"{_who(lookup)}: {wrong}"))
    return found


def no_old_actives(history: History) -> list[Violation]:
    """Nobody claims ACTIVE to a request that carries a newer epoch: the router's, known by the time it was due."""
    found = []
    known: dict[str, int] = defaultdict(int)
    news = iter(history.routers)
    following = next(news, None)
    for lookup in sorted(history.lookups, key=lambda lookup: lookup.due_at):
        while following is not None and following.at <= lookup.due_at:
            known[following.router] = max(known[following.router], following.epoch)
            following = next(news, None)
        if lookup.role == Role.ACTIVE.name and lookup.epoch < known[lookup.router]:
            message = f"{_who(lookup)}: {lookup.host} claims ACTIVE at {lookup.epoch}, asked at {known[lookup.router]}"
            found.append(Violation("old active", lookup.due_at, message))
    return found


def nothing_lost_or_doubled(history: History, versions: Versions) -> list[Violation]:
    """In the end every copy of every key is its last committed version.

    Each key has as many copies as it should, and one of them is the active's. There are no more entries than keys.
    """
    run = history.run
    if run is None:
        return [Violation("end state", 0.0, "the run has not come to its end")]
    roles: dict[str, list[str]] = defaultdict(list)
    last = versions.last()
    wrong = []
    for final in history.finals:
        roles[final.key].append(final.role)
        if final.version != last.get(final.key):
            wrong.append(f"{final.key} is {final.version} on {final.host} ({final.role}), not {last.get(final.key)}")
    wrong += [
        f"{key} has copies {roles[key]}, {run.copies} are wanted"
        for key in last
        if len(roles[key]) != run.copies or roles[key].count(Role.ACTIVE.name) != 1
    ]
    if run.count != len(last):
        wrong.append(f"{run.count} entries were counted, {len(last)} were written")
    return [Violation("end state", run.seconds, message) for message in wrong]


def check(history: History) -> list[Violation]:
    """Return everything that is wrong with a run, by time."""
    versions = Versions(history.writes)
    found = [
        *failed_lookups(history),
        *monotonic_reads(history),
        *bounds_kept(history),
        *true_stamps(history, versions),
        *right_hosts(history, versions),
        *no_old_actives(history),
        *nothing_lost_or_doubled(history, versions),
    ]
    return sorted(found, key=lambda violation: violation.at)


def _who(lookup: LookupRecord) -> str:
    return f"{lookup.client} asks for {lookup.key}"
