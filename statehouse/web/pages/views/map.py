"""The partition map: who is active for each partition, how it does, and how that came about. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import Store
from statehouse.web.pages.blocks import Span, blocks, within
from statehouse.web.pages.epochs import Epoch, Holders, Move
from statehouse.web.pages.partitions import Condition, PartitionNow, partition_count, partitions_of, task_of
from statehouse.web.pages.recorder import Recorder

CELLS_MAX: Final = 200
MOVES_SHOWN: Final = 100
_JUST_NOW_MS: Final = 20_000
"""For so long after an epoch the map shows what it moved."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A partition, or a block of several. `was`: the active before the epoch that is shown, if that moved it.

    `counts`: how many partitions of a block do how. `condition`: of a block, the worst of it.
    """

    span: Span
    condition: Condition
    active: str | None
    standbys: tuple[str, ...]
    warm_ups: tuple[str, ...]
    lag: int | None
    reason: str
    moved: int
    was: str | None
    counts: tuple[tuple[Condition, int], ...]

    @property
    def is_block(self) -> bool:
        """Whether it is more than one partition."""
        return self.span.count > 1


@dataclass(frozen=True, slots=True)
class StoreMap:
    """A store's partitions, or a part of them."""

    store: str
    kind: str
    is_global: bool
    total: int
    shown: Span | None
    cells: tuple[Cell, ...]
    counts: tuple[tuple[Condition, int], ...]


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch of the replay."""

    number: int
    seen_at_ms: int
    reason: str
    moves: int
    actives_moved: int
    missed: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class MapView:
    """The maps of all stores, or of one, now or as of an epoch.

    `epoch`: of a replay, None for now. `earlier` and `later`: the epochs before and after the one that is shown.
    `moves`: what the shown epoch moved; `moves_not_shown` more are left out.
    """

    stores: tuple[str, ...]
    store: str | None
    maps: tuple[StoreMap, ...]
    epoch: int | None
    shown: EpochRow | None
    earlier: int | None
    later: int | None
    epochs: tuple[EpochRow, ...]
    moves: tuple[Move, ...]
    moves_not_shown: int


def map_view(
    recorder: Recorder, now_ms: int, store: str | None, first: int | None, last: int | None, epoch: int | None
) -> MapView:
    """Return the map; of all stores if none is named, and of now if no epoch is."""
    fleet = recorder.fleet
    stores = () if fleet is None else fleet.stores
    epochs = recorder.epochs.newest_first
    replayed = None if epoch is None else recorder.epochs.find(epoch)
    shown = replayed or (epochs[0] if epochs else None)
    is_told = replayed is not None or (shown is not None and now_ms - shown.seen_at_ms < _JUST_NOW_MS)
    moved = {move.task: move for move in shown.moves} if shown is not None and is_told else {}
    holders = None if replayed is None else recorder.epochs.holders_at(replayed.number)
    chosen = [each for each in stores if store in {None, each.name}]
    numbers = [each.number for each in reversed(epochs)]
    at = numbers.index(shown.number) if shown is not None else 0
    moves = shown.moves if shown is not None else ()
    return MapView(
        tuple(each.name for each in stores),
        store,
        tuple(_map(recorder, each, within(partition_count(each), first, last), moved, holders) for each in chosen),
        None if replayed is None else replayed.number,
        None if shown is None else _row(shown),
        numbers[at - 1] if at > 0 else None,
        numbers[at + 1] if at + 1 < len(numbers) else None,
        tuple(_row(each) for each in epochs),
        moves[:MOVES_SHOWN],
        max(0, len(moves) - MOVES_SHOWN),
    )


def _map(
    recorder: Recorder,
    store: Store,
    span: Span | None,
    moved: Mapping[str, Move],
    holders: Mapping[str, Holders] | None,
) -> StoreMap:
    total = partition_count(store)
    if span is None:
        return StoreMap(store.name, store.kind, store.is_global, total, None, (), ())
    if holders is None:
        places = list(partitions_of(store, recorder.tasks, recorder.contacts, span.places))
    else:
        places = list(_as_they_were(store, span, holders))
    cells = tuple(
        _cell(places[part.first - span.first : part.last - span.first + 1], part, moved)
        for part in blocks(span, CELLS_MAX)
    )
    counts = Counter(place.condition for place in places)
    return StoreMap(store.name, store.kind, store.is_global, total, span, cells, tuple(sorted(counts.items())))


def _as_they_were(store: Store, span: Span, holders: Mapping[str, Holders]) -> Iterator[PartitionNow]:
    """Return partitions as an epoch had them. How they did then is not kept: only who held them."""
    for partition in span.places:
        name = task_of(store, partition)
        held = holders.get(name, Holders(None))
        condition = Condition.NOBODY if held.active is None else Condition.WELL
        if store.is_global:
            condition = Condition.UNKNOWN
        yield PartitionNow(
            store.name, partition, name, condition, held.active, held.standbys, held.warm_ups, 0, None, ""
        )


def _cell(places: list[PartitionNow], span: Span, moved: Mapping[str, Move]) -> Cell:
    moves = [moved[place.task] for place in places if place.task in moved]
    counts = tuple(sorted(Counter(place.condition for place in places).items()))
    if len(places) == 1:
        (only,) = places
        was = moves[0].before.active if moves and moves[0].before is not None and moves[0].moves_active else None
        return Cell(
            span,
            only.condition,
            only.active,
            only.standbys,
            only.warm_ups,
            only.lag,
            only.reason,
            len(moves),
            was,
            counts,
        )
    lag = max((place.lag for place in places if place.lag is not None), default=None)
    worst = max(place.condition for place in places)
    return Cell(span, worst, None, (), (), lag, "", len(moves), None, counts)


def _row(epoch: Epoch) -> EpochRow:
    return EpochRow(
        epoch.number,
        epoch.seen_at_ms,
        epoch.reason,
        len(epoch.moves),
        sum(move.moves_active for move in epoch.moves),
        epoch.missed,
        epoch.is_first,
    )
