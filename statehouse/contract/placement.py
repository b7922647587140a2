"""Placement: whether a store's records stand where its partitioner puts their keys, and what follows for lookups.

Pure. "Not found" in one partition proves that a key is absent only if its writer places keys as we do. Nodes count the
records that stand elsewhere as they apply them (`query_service.replicas.placement`), and report each partition's count.
Nodes and routers keep what members report here, and both decide by `refusal`:

- A store with misplaced records is answered from all its partitions, so no partition answers on its own.
- If other programs write a store, nobody can say that a key is absent before each partition has been read once.
- A store that the application's own processor writes is placed right by contract: only a known misplaced record counts.

A report without a count is from a replica whose state nobody checked from the start, as an earlier version doesn't. It
hinders nobody, so that a fleet goes on answering while it is upgraded.

A topic that was deleted and created again is another log, and nothing is known of that one yet. So each count comes
with a number for its log, and what is reported of a store tells something only if all its partitions are of one log.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from statehouse.contract.membership import Member, TaskState
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason

_Place = tuple[str, int]
"""A store and a partition."""

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class _Report:
    """What a replica says of its partition: `misplaced` as in `StorePosition`, and the log that it is of."""

    misplaced: int | None
    log: int
    is_read: bool = True
    """Whether all of the log has been read. Before that, only what was found counts, and which log it is."""


class Claim(Enum):
    """What an answer says of a key, apart from the value that it may have."""

    FOUND = auto()
    """That it has this value."""
    ABSENT = auto()
    """That it has none."""
    WHOLE = auto()
    """That there is nothing else of it: a page of its windows, its history."""


@dataclass(frozen=True, slots=True)
class StorePlacement:
    """What is known of a store's partitions.

    Attributes:
        misplaced: how many misplaced records partitions have; only those that have some.
        unknown: the partitions of a foreign store that no restored replica has reported yet.

    """

    misplaced: Mapping[int, int]
    unknown: tuple[int, ...] = ()

    @property
    def is_scattered(self) -> bool:
        """Whether a key may be in any partition."""
        return bool(self.misplaced)


NO_PLACEMENTS: Final[Mapping[str, StorePlacement]] = MappingProxyType({})


def refusal(store: str, placement: StorePlacement, claim: Claim) -> LookupFailure | None:
    """Return why one partition's replica may not claim this of a key on its own, None if it may."""
    if placement.is_scattered:
        return misplaced_failure(store, placement)
    if claim is Claim.FOUND or not placement.unknown:
        return None
    shown = ", ".join(map(str, placement.unknown[:_SHOWN]))
    return LookupFailure(
        Reason.PARTITION_RESTORING,
        f"other programs write {store}, and it is not known yet whether records of it are misplaced: no replica has "
        f"reported to have read partition {shown}{' and more' if len(placement.unknown) > _SHOWN else ''}",
        {"store": store, "unread_partition": str(placement.unknown[0])},
    )


def misplaced_failure(store: str, placement: StorePlacement) -> LookupFailure:
    """Return the failure of a question that one partition of such a store can't answer."""
    return LookupFailure(
        Reason.KEYS_MISPLACED,
        f"{warning(placement)}: a key of {store} may be in any partition",
        {"store": store, "misplaced_records": str(sum(placement.misplaced.values()))},
    )


def warning(placement: StorePlacement) -> str:
    """Say for people what is wrong with a scattered store."""
    partitions = sorted(placement.misplaced)
    shown = ", ".join(map(str, partitions[:_SHOWN])) + (" and more" if len(partitions) > _SHOWN else "")
    return (
        f"{sum(placement.misplaced.values())} misplaced records in partition{'s' if len(partitions) > 1 else ''} "
        f"{shown}: their writer's partitioner is not murmur2"
    )


def log_number(topic_id: str, partitions: int) -> int:
    """Return a number that stands for a topic, by its id, whose keys are placed by so many partitions; never 0."""
    return zlib.crc32(f"{topic_id}/{partitions}".encode()) or 1


class FleetPlacements:
    """What members report of placement, and what they last reported of partitions that nobody holds at the moment.

    The largest count of a partition's replicas stands: each has read the same log, but one that began later may have
    missed what compaction has removed since. The count of a partition falls only if no replica reports the larger one
    any more: replicas that restored it from the start have found fewer.
    """

    def __init__(self) -> None:
        self._of_member: dict[str, tuple[Member, dict[_Place, _Report]]] = {}
        self._reports: dict[_Place, dict[str, _Report]] = {}
        self._known: dict[_Place, _Report] = {}
        self._scattered: dict[str, dict[int, int]] = {}
        self._stores: Mapping[str, StoreSpec] = {}

    def take(self, members: Mapping[str, Member]) -> None:
        """Take the members as they are now. Only those that have changed cost anything."""
        for name in [name for name in self._of_member if name not in members]:
            self._replace(name, self._of_member.pop(name)[1], {})
        for name, member in members.items():
            before = self._of_member.get(name)
            if before is None or before[0] is not member:
                following = dict(_placements_in(member))
                self._of_member[name] = (member, following)
                self._replace(name, {} if before is None else before[1], following)

    def of(self, stores: Mapping[str, StoreSpec]) -> Mapping[str, StorePlacement]:
        """Return the stores that can't be fully answered from one partition; usually none."""
        if stores is not self._stores:
            before, self._stores = self._stores, stores
            self._forget_gone(before)
        found: dict[str, StorePlacement] = {}
        for name, spec in stores.items():
            if spec.is_global:
                continue  # a node has all of its partitions, and asks them itself
            misplaced = {at: count for at, count in self._scattered.get(name, {}).items() if at < spec.partition_count}
            unknown: tuple[int, ...] = ()
            if spec.foreign:
                places = [(name, at) for at in range(spec.partition_count)]
                unknown = tuple(place[1] for place in places if place not in self._known)
                if not unknown and not self._is_of_one_log(places):
                    unknown = tuple(range(spec.partition_count))
            if misplaced or unknown:
                found[name] = StorePlacement(MappingProxyType(misplaced), unknown)
        return MappingProxyType(found)

    def _is_of_one_log(self, places: Iterable[_Place]) -> bool:
        """Whether what is reported of a store, and what is known of partitions that nobody reports, is of one log."""
        logs = {
            report.log for place in places for report in (*self._reports.get(place, {}).values(), self._known[place])
        }
        return len(logs - {0}) <= 1  # an earlier version doesn't tell

    def _replace(self, name: str, before: Mapping[_Place, _Report], following: Mapping[_Place, _Report]) -> None:
        """Replace what a member reports."""
        for place in before.keys() | following.keys():
            if place in before and place in following and before[place] == following[place]:
                continue
            reports = self._reports.setdefault(place, {})
            reports.pop(name, None)
            if place in following:
                reports[name] = following[place]
            if not reports:
                del self._reports[place]
            # While nobody says more, what was last known of it stays.
            if said := [report for report in reports.values() if report.is_read or report.misplaced]:
                self._know(place, max(said, key=lambda report: -1 if report.misplaced is None else report.misplaced))

    def _forget_gone(self, before: Mapping[str, StoreSpec]) -> None:
        """Forget what was last reported of stores that are no more, or that are others under the same name now."""
        as_before = {
            name
            for name, spec in self._stores.items()
            if name not in before
            or (before[name].changelog_topic, before[name].partition_count)
            == (spec.changelog_topic, spec.partition_count)
        }
        for place in [place for place in self._known if place[0] not in as_before and place not in self._reports]:
            del self._known[place]
            self._scattered.get(place[0], {}).pop(place[1], None)

    def _know(self, place: _Place, report: _Report) -> None:
        self._known[place] = report
        store, partition = place
        if report.misplaced:
            self._scattered.setdefault(store, {})[partition] = report.misplaced
        elif store in self._scattered:
            self._scattered[store].pop(partition, None)


def _placements_in(member: Member) -> Iterator[tuple[_Place, _Report]]:
    """Yield what a heartbeat says of partitions.

    A restoring replica has not read all of its log; but what it has found is there.
    """
    for task, report in member.replicas.items():
        for store, at in report.stores.items():
            if report.is_restored or at.misplaced or report.state == TaskState.RESTORING:
                yield (store, task.partition), _Report(at.misplaced, at.placement_log, report.is_restored)
