"""What needs attention, and how the whole fleet does: of each page the dot, of the first one a list. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

from statehouse.client.answers import Controller, Fleet
from statehouse.contract.membership import SILENT
from statehouse.contract.query_states import ReportedState
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.partitions import BEHIND, Condition
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


class Health(StrEnum):
    """How the fleet does, for those who use it."""

    UNKNOWN = "not known"
    OK = "ok"
    ATTENTION = "needs attention"
    ERRORS = "users get errors"


def health_of(recorder: Recorder) -> Health:
    """Return how the fleet does; of partitions by the newest column of the past, which is seconds old at most."""
    if recorder.routing.failed_per_s:
        return Health.ERRORS
    if recorder.fleet is None:
        return Health.UNKNOWN
    columns = recorder.samples.columns
    states = chain.from_iterable(store.states for store in columns[-1].stores.values()) if columns else ()
    counts = {Condition(state): number for state, number in Counter(states).items()}
    return Health.ATTENTION if recorder.trouble is not None or notices_of(recorder, counts) else Health.OK


def silent_nodes(recorder: Recorder) -> list[str]:
    """Return the nodes that don't answer this process, or that the router hasn't heard for a session."""
    nodes = () if recorder.fleet is None else recorder.fleet.nodes
    unheard = {node.host.instance_id for node in nodes if node.state == SILENT}
    return sorted(unheard | {name for name, known in recorder.contacts.items() if known.contact is Contact.SILENT})


def is_away(controller: Controller, age_ms: int) -> bool:
    """Whether the controller that acted last has ended, or its newest record is too old."""
    return controller.stopped or age_ms > CONTROLLER_QUIET_MS


def notices_of(recorder: Recorder, counts: Mapping[Condition, int]) -> tuple[Notice, ...]:
    """Return what needs attention. `counts`: how many partitions do how."""
    return tuple(_notices(recorder, counts))


def _notices(recorder: Recorder, counts: Mapping[Condition, int]) -> Iterator[Notice]:
    fleet = recorder.fleet
    if fleet is None:
        return
    for condition in sorted(counts, reverse=True):
        if condition > Condition.THIN:
            number = counts[condition]
            yield Notice(
                f"{condition.glyph} {number:,} {'partition' if number == 1 else 'partitions'}: {condition.words}", "map"
            )
    if silent := silent_nodes(recorder):
        yield Notice(f"{'Node' if len(silent) == 1 else 'Nodes'} silent: {_some(silent)}", "nodes")
    yield from _of_processor(fleet)
    yield from _of_refusals(recorder)
    yield from _of_stores(fleet)
    changelogs = recorder.changelogs or ()
    if differing := sorted(each.store for each in changelogs if any(setting.differs for setting in each.settings)):
        yield Notice(f"Changelogs not as the application wants them: {_some(differing)}", "changelogs")


def _of_processor(fleet: Fleet) -> Iterator[Notice]:
    controller = fleet.controller
    if controller is not None and is_away(controller, controller.record_age_ms):
        yield Notice("No controller acts: who holds what stays as it is until one does", "queries")
    for query in fleet.queries:
        if query.state == ReportedState.STOPPED:
            yield Notice(f"Query {query.name} has stopped", "queries")
        elif query.state in ILL:
            yield Notice(f"Query {query.name}: {query.condition}", "queries")
        elif query.input_backlog is not None and query.input_backlog >= BEHIND:
            yield Notice(f"Query {query.name} has {query.input_backlog:,} records to process", "queries")


def _of_refusals(recorder: Recorder) -> Iterator[Notice]:
    now_s = recorder.fleet_at.at_s
    for name, number in recorder.refusals.recent_dead_letters(now_s).items():
        yield Notice(f"Query {name} has refused {number:,} {'record' if number == 1 else 'records'} lately", "queries")
    for name, number in recorder.refusals.recent_late_rows(now_s).items():
        yield Notice(f"Query {name} has dropped {number:,} late {'row' if number == 1 else 'rows'} lately", "queries")


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
