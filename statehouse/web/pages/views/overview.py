"""The fleet at a glance: whether users get errors, what needs attention, counts, and the last hour. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from statehouse.client.answers import Controller, Fleet, VersionsInfo
from statehouse.contract.membership import LEAVING_STATES
from statehouse.contract.query_states import ReportedState
from statehouse.web.pages.partitions import Condition, partition_count, partitions_of
from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.samples import Samples
from statehouse.web.pages.views.attention import ILL, Notice, notices_of, silent_nodes
from statehouse.web.pages.views.service import ServiceView, service_view


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of the last hour: lookups a second, the largest lag, and failed lookups a second; None: not known."""

    at_ms: int
    lookups: float | None
    lag: float | None
    failed: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What users get, what needs attention, and the fleet's counts."""

    service: ServiceView
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
    ill: tuple[tuple[str, int], ...]
    """How many queries are in each of the states in which they don't do their work."""
    rows_per_s: float | None
    backlog: int | None
    controller: Controller | None
    served_by: str | None
    versions: VersionsInfo | None
    reason: str
    notices: tuple[Notice, ...]
    points: tuple[Point, ...]

    @property
    def well(self) -> int:
        """Partitions that do well."""
        return dict(self.counts).get(Condition.WELL, 0)

    @property
    def is_silent(self) -> bool:
        """Whether the processor of a query has not been heard for three heartbeats."""
        return ReportedState.SILENT in dict(self.ill)

    @property
    def latest(self) -> Point | None:
        """The newest point."""
        return self.points[-1] if self.points else None


def overview(recorder: Recorder, now: Moment, *, is_measured: bool) -> Overview:
    """Return the fleet at a glance."""
    fleet = recorder.fleet or Fleet("", 0, "", (), (), ())
    contacts = recorder.contacts
    counts: Counter[Condition] = Counter()
    for store in fleet.stores:
        places = partitions_of(store, recorder.tasks, contacts, range(partition_count(store)))
        counts.update(place.condition for place in places)
    statuses = [query.status for query in fleet.queries if query.status is not None]
    backlogs = [query.input_backlog for query in fleet.queries if query.input_backlog is not None]
    return Overview(
        service_view(recorder, now, is_measured=is_measured),
        len(fleet.nodes),
        len(silent_nodes(recorder)),
        sum(node.state in LEAVING_STATES for node in fleet.nodes),
        len({node.rack for node in fleet.nodes if node.rack}),
        len(fleet.stores),
        sum(counts.values()),
        tuple(sorted(counts.items())),
        len(fleet.tasks),
        sum(replica.state in {"restoring", "created"} for task in fleet.tasks for replica in task.replicas),
        sum(len(task.warm_ups) for task in fleet.tasks),
        len(fleet.queries),
        tuple(sorted(Counter(query.state for query in fleet.queries if query.state in ILL).items())),
        sum(status.input_rows_per_second for status in statuses) if statuses else None,
        sum(backlogs) if backlogs else None,
        fleet.controller,
        fleet.served_by,
        fleet.versions,
        fleet.reason,
        notices_of(recorder, counts),
        _points(recorder.samples),
    )


def _points(samples: Samples) -> tuple[Point, ...]:
    """Return the last hour: its newest minutes in columns, what was before them in spans."""
    columns = samples.columns
    spans = [span for span in samples.spans if span.at_ms < columns[0].at_ms]
    before = [Point(span.at_ms, span.lookups, span.lag, span.failed) for span in spans]
    return (*before, *(Point(column.at_ms, column.lookups, column.lag, column.failed) for column in columns))
