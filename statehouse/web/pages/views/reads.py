"""What a lookup, or a page of a store, looks like. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from statehouse.client.answers import (
    Attempt,
    Candidate,
    Entry,
    Explanation,
    KeyedSession,
    KeyedWindow,
    KeyLike,
    Session,
    Stamp,
    Store,
    Window,
)
from statehouse.client.node_readings import NodeReading
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import LookupFailure
from statehouse.web.pages.figures import key_text, value_text


@dataclass(frozen=True, slots=True)
class LookupForm:
    """What somebody typed into the form of a lookup."""

    store: str = ""
    key: str = ""
    active_only: bool = False
    max_lag: int | None = None
    max_staleness_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry of a store. `start_ms` and `end_ms`: of a window or session."""

    key: str
    value: str
    timestamp_ms: int | None
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something can't be answered: the name of the reason, and words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class LookupView:
    """The form, and what came of it. All but `stores` and `asked` is absent until a key is given."""

    stores: tuple[Store, ...]
    asked: LookupForm
    problem: Problem | None = None
    found: bool | None = None
    value: str = ""
    timestamp_ms: int | None = None
    entries: tuple[EntryRow, ...] = ()
    stamp: Stamp | None = None
    partition: int | None = None
    epoch: int | None = None
    candidates: tuple[Candidate, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    took_ms: float | None = None
    hedge_after_ms: float | None = None
    retry_budget_refused: str | None = None
    takes_express_way: bool | None = None
    express_detail: str = ""

    @property
    def span_ms(self) -> float:
        """Until the last call ended: the scale of their bars."""
        return max((each.sent_after_ms + each.took_ms for each in self.attempts), default=0.0) or 1.0


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store, and a page of its entries. `next_page`: the token of the one after it; empty after the last."""

    store: Store
    prefix: str
    first: str
    last: str
    reverse: bool
    rows: tuple[EntryRow, ...]
    replicas: tuple[Stamp, ...]
    next_page: str
    count: int | None
    problem: Problem | None = None
    oldest_batch: int | None = None

    @property
    def has_times(self) -> bool:
        """Whether its entries are windows or sessions."""
        return self.store.kind in {WINDOW, SESSION}


@dataclass(frozen=True, slots=True)
class StoresView:
    """All stores. `oldest_batches`: for each of them, as `oldest_kept` says."""

    stores: tuple[Store, ...]
    oldest_batches: tuple[int | None, ...]


def stores_view(stores: tuple[Store, ...], readings: Iterable[NodeReading]) -> StoresView:
    """Return all stores. `readings`: what nodes say of themselves."""
    return StoresView(stores, oldest_kept(stores, readings))


def oldest_kept(stores: Iterable[Store], readings: Iterable[NodeReading]) -> tuple[int | None, ...]:
    """Return for each store from which batch on all its replicas have what they keep; None if that isn't known.

    Replicas that don't run count for nothing, and are asked for nothing.
    """
    told: defaultdict[str, list[int | None]] = defaultdict(list)
    for reading in readings:
        for each in reading.replicas:
            if each.state == TaskState.RUNNING:
                told[each.store].append(each.oldest_batch)
    return tuple(_largest(told[store.name], store.newest_batch) for store in stores)


def _largest(told: Sequence[int | None], newest: int | None) -> int | None:
    known = [each for each in told if each is not None]
    if newest is None or not known or len(known) < len(told):
        return None
    # A larger one is from before the batches' ids began anew.
    return oldest if (oldest := max(known)) <= newest else None


def explained(stores: tuple[Store, ...], asked: LookupForm, explanation: Explanation) -> LookupView:
    """Return a lookup with its explanation."""
    answer, failure, place = explanation.answer, explanation.failure, explanation.location
    return LookupView(
        stores,
        asked,
        problem=None if failure is None else problem_of(failure),
        found=None if answer is None else answer.found,
        value="" if answer is None or not answer.found else value_text(answer.value),
        timestamp_ms=None if answer is None else answer.timestamp_ms,
        stamp=None if answer is None else Stamp(**{each.name: getattr(answer, each.name) for each in fields(Stamp)}),
        partition=place.partition,
        epoch=place.epoch,
        candidates=place.candidates,
        attempts=explanation.attempts,
        took_ms=explanation.took_ms,
        hedge_after_ms=explanation.hedge_after_ms,
        retry_budget_refused=explanation.retry_budget_refused,
        takes_express_way=explanation.takes_express_way,
        express_detail=explanation.express_detail,
    )


def problem_of(failure: LookupFailure) -> Problem:
    """Return a failure for people."""
    return Problem(failure.reason.name, failure.message)


def entry_row(entry: Entry) -> EntryRow:
    """Return an entry of a key-value store."""
    return EntryRow(key_text(entry.key), value_text(entry.value), entry.timestamp_ms)


def timed_row(key: KeyLike, entry: Window | Session | KeyedWindow | KeyedSession) -> EntryRow:
    """Return a window or a session of a key."""
    return EntryRow(key_text(key), value_text(entry.value), entry.timestamp_ms, entry.start_ms, entry.end_ms)
