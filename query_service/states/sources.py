"""Where a restore takes its state from: the own disk, another node's files, or the log; by estimates. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import LEAVING_STATES, Member, StorePosition, TaskState, target
from statehouse.contract.topology import AnyTaskId, GlobalId, TaskId

PEERS_MAX: Final = 3
"""So many peers are asked for one store: then the log is read, which always can be."""
# What making a checkpoint, opening its files and so on takes, whatever is in them.
_PEER_S: Final = 0.5
# A file rate that falls this far behind what the plan was made with is not waited for.
_SLOW: Final = 2.0
_JUDGED_AFTER_S: Final = 5.0
_NEW_SHARE: Final = 0.5
_MEASURED_S: Final = 0.2
"""What took less says little of a rate."""
_OFFER_LEAST_S: Final = 10.0
_OFFER_MOST_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast this node restores: what it assumes before its first restore, then what it has measured.

    Attributes:
        log_records_s: records of a log a second.
        file_bytes_s: bytes of files a second.

    """

    log_records_s: float = 500_000.0
    file_bytes_s: float = 200e6

    def log_s(self, records: int) -> float:
        """Return how many seconds a log takes to read, at most: compaction may have removed records."""
        return max(0, records) / self.log_records_s

    def files_s(self, size: int) -> float:
        """Return how many seconds files take to fetch."""
        return size / self.file_bytes_s

    def read(self, records: int, took_s: float) -> Rates:
        """Return the rates after a restore from a log."""
        if took_s < _MEASURED_S or records <= 0:
            return self
        return replace(self, log_records_s=_mixed(self.log_records_s, records / took_s))

    def fetched(self, size: int, took_s: float) -> Rates:
        """Return the rates after files were fetched."""
        if took_s < _MEASURED_S or size <= 0:
            return self
        return replace(self, file_bytes_s=_mixed(self.file_bytes_s, size / took_s))


def _mixed(before: float, new: float) -> float:
    return before + _NEW_SHARE * (new - before)


@dataclass(frozen=True, slots=True)
class LeftToRead:
    """What of a log is to be read: from the own disk's position, or from the log's start, to its end."""

    start: int
    end: int

    @property
    def records(self) -> int:
        """How many records that are, at most."""
        return max(0, self.end - self.start)


def is_worth_asking(left: LeftToRead, rates: Rates, after_s: float) -> bool:
    """Whether reading the log takes longer than asking others is worth. `after_s`: how long it may take for that."""
    return left.records > 0 and rates.log_s(left.records) >= after_s


def offered_within_s(left: LeftToRead, rates: Rates) -> float:
    """Return how long a peer may take to answer, in seconds: it makes one checkpoint after the other.

    After the time that the log takes, it can't be cheaper any more.
    """
    return min(max(rates.log_s(left.records), _OFFER_LEAST_S), _OFFER_MOST_S)


def is_cheaper(missing: int, position: int, left: LeftToRead, rates: Rates) -> bool:
    """Whether files of a peer get to the log's end sooner than what is on the own disk does, or nothing.

    `missing`: the bytes that are still to be fetched. `position`: the first offset that the files lack.
    """
    tail_s = rates.log_s(left.end - position)
    return _PEER_S + rates.files_s(missing) + tail_s < rates.log_s(left.records)


def is_too_slow(fetched: int, missing: int, took_s: float, left: LeftToRead, rates: Rates) -> bool:
    """Whether a transfer is so slow that reading the log is better, though what was fetched is lost.

    `fetched`: bytes within `took_s` seconds; `missing`: those still to come.
    """
    if took_s < _JUDGED_AFTER_S or missing <= 0:
        return False
    rest_s = took_s * missing / max(fetched, 1)
    return rest_s > _SLOW * rates.log_s(left.records)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node that has a store's partition: its instance id, its address, and which run of its process it is."""

    name: str
    address: str
    incarnation: str = ""


def peers_of(
    assignment: Assignment | None, members: Mapping[str, Member], own: str, task: AnyTaskId, store: str, partition: int
) -> list[Peer]:
    """Return who can give a store's partition, in the order in which they are asked.

    Those that have restored it and go on: standbys first, as an active has lookups to answer, and of each the ones that
    have read furthest. `own`: our instance id.
    """
    actives = set()
    if assignment is not None and isinstance(task, TaskId) and (placed := assignment.tasks.get(task)) is not None:
        actives.add(placed.active)
    found = {
        (member.instance_id in actives, -(at.position or 0), member.instance_id): member
        for member in members.values()
        for at in _positions(member, task, store, partition)
        if member.instance_id != own and member.state not in LEAVING_STATES
    }
    return [
        Peer(member.instance_id, target(member.host, member.port), member.incarnation)
        for _, member in sorted(found.items(), key=lambda each: each[0])[:PEERS_MAX]
    ]


def _positions(member: Member, task: AnyTaskId, store: str, partition: int) -> Iterator[StorePosition]:
    """Yield where a member's copy of a store's partition is, if it has one that answers."""
    if isinstance(task, GlobalId):
        copy = member.global_replicas.get(task.store)
        if copy is not None and copy.state == TaskState.RUNNING and partition in copy.positions:
            yield copy.positions[partition]
        return
    replica = member.replicas.get(task)
    if replica is not None and replica.is_restored and store in replica.stores:
        yield replica.stores[store]
