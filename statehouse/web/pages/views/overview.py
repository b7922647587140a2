"""The fleet at a glance: counts, what needs attention, and the last minutes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import ChangelogSettings, Controller, Fleet
from statehouse.contract.membership import LEAVING_STATES
from statehouse.contract.query_states import ReportedState
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.partitions import BEHIND, Condition, partition_count, partitions_of
from statehouse.web.pages.recorder import Recorder

CONTROLLER_QUIET_MS: Final = 10_000
"""A controller writes a record per heartbeat interval, a second by default; the session timeout is this by default."""
ILL: Final = frozenset({ReportedState.RESTARTING, ReportedState.FAILED, ReportedState.SILENT})
"""States of queries that don't do their work."""
_TROUBLED_MAX: Final = 5
"""Stores whose warnings are shown."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that needs attention. `page` and `about` say where to look: a page's path and its query."""

    words: str
    page: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of the last minutes: lookups a second, and the largest lag; None where it isn't known."""

    at_ms: int
    lookups: float | None
    lag: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The fleet's counts."""

    nodes: int
    silent: int
    leaving: int
    racks: int
    stores: int
    partitions: int
    counts: tuple[tuple[Condition, int], ...]
    tasks: int
    restoring: int
    warm_ups: int
    queries: int
    rows_per_s: float | None
    backlog: int | None
    controller: Controller | None
    served_by: str | None
    reason: str
    notices: tuple[Notice, ...]
    points: tuple[Point, ...]

    @property
    def well(self) -> int:
        """Partitions that do well."""
        return dict(self.counts).get(Condition.WELL, 0)

    @property
    def latest(self) -> Point | None:
        """The newest point."""
        return self.points[-1] if self.points else None


def overview(recorder: Recorder) -> Overview:
    """Return the fleet at a glance."""
    fleet = recorder.fleet or Fleet("", 0, "", (), (), ())
    contacts = recorder.contacts
    counts: Counter[Condition] = Counter()
    for store in fleet.stores:
        places = partitions_of(store, recorder.tasks, contacts, range(partition_count(store)))
        counts.update(place.condition for place in places)
    silent = [name for name, known in contacts.items() if known.contact is Contact.SILENT]
    statuses = [query.status for query in fleet.queries if query.status is not None]
    backlogs = [query.input_backlog for query in fleet.queries if query.input_backlog is not None]
    return Overview(
        len(fleet.nodes),
        len(silent),
        sum(node.state in LEAVING_STATES for node in fleet.nodes),
        len({node.rack for node in fleet.nodes if node.rack}),
        len(fleet.stores),
        sum(counts.values()),
        tuple(sorted(counts.items())),
        len(fleet.tasks),
        sum(replica.state in {"restoring", "created"} for task in fleet.tasks for replica in task.replicas),
        sum(len(task.warm_ups) for task in fleet.tasks),
        len(fleet.queries),
        sum(status.input_rows_per_second for status in statuses) if statuses else None,
        sum(backlogs) if backlogs else None,
        fleet.controller,
        fleet.served_by,
        fleet.reason,
        tuple(_notices(fleet, counts, sorted(silent), recorder.changelogs or ())),
        tuple(Point(column.at_ms, column.lookups, column.lag) for column in recorder.samples.columns),
    )


def _notices(
    fleet: Fleet, counts: Counter[Condition], silent: list[str], changelogs: Sequence[ChangelogSettings]
) -> Iterator[Notice]:
    for condition in sorted(counts, reverse=True):
        if condition > Condition.THIN:
            number = counts[condition]
            yield Notice(
                f"{condition.glyph} {number:,} {'partition' if number == 1 else 'partitions'}: {condition.words}", "map"
            )
    if silent:
        yield Notice(f"{'Node' if len(silent) == 1 else 'Nodes'} silent: {_some(silent)}", "nodes")
    controller = fleet.controller
    if controller is not None and (controller.stopped or controller.record_age_ms > CONTROLLER_QUIET_MS):
        yield Notice("No controller acts: who holds what stays as it is until one does", "")
    for query in fleet.queries:
        if query.state == ReportedState.STOPPED:
            yield Notice(f"Query {query.name} has stopped", "queries")
        elif query.state in ILL:
            yield Notice(f"Query {query.name}: {query.condition}", "queries")
        elif query.input_backlog is not None and query.input_backlog >= BEHIND:
            yield Notice(f"Query {query.name} has {query.input_backlog:,} records to process", "queries")
    yield from _of_stores(fleet)
    differing = sorted(each.store for each in changelogs if any(setting.differs for setting in each.settings))
    if differing:
        yield Notice(f"Changelogs not as the application wants them: {_some(differing)}", "changelogs")


def _of_stores(fleet: Fleet) -> Iterator[Notice]:
    not_built = [store.name for store in fleet.stores if store.not_built]
    if not_built:
        yield Notice(f"Not built yet, so that reads fail: {_some(not_built)}", "stores")
    troubled = [store for store in fleet.stores if store.warnings]
    for store in troubled[:_TROUBLED_MAX]:
        yield Notice(f"Store {store.name}: {'; '.join(store.warnings)}", "stores")
    if len(troubled) > _TROUBLED_MAX:
        yield Notice(
            f"{len(troubled) - _TROUBLED_MAX} more stores have warnings: see `statehouse stores list`", "stores"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
