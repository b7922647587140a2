"""The heat map: partitions by time, for lookups, lag or the active. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from statehouse.web.pages.blocks import Span, blocks, within
from statehouse.web.pages.partitions import Condition, partition_count
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.samples import StoreColumn

ROWS_MAX: Final = 100
MOVED: Final = len(Condition)
"""The level of a partition whose active has just moved, beside those of `Condition`."""


class HeatOf(StrEnum):
    """What the colours mean."""

    LOOKUPS = "lookups"
    LAG = "lag"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Level:
    """A colour of the map: its number, and what it means."""

    number: int
    words: str


_BOUNDS: Final = (0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
"""Beyond zero: the scale is the same for every store and time, so that colours can be compared."""
_LEVELS: Final = {
    HeatOf.LOOKUPS: (
        "none",
        "under 1 /s",
        "1 to 10 /s",
        "10 to 100 /s",
        "100 to 1,000 /s",
        "1,000 to 10,000 /s",
        "more",
    ),
    HeatOf.LAG: ("caught up", "under 1", "1 to 9", "10 to 99", "100 to 999", "1,000 to 9,999", "10,000 and more"),
    HeatOf.ROLE: (*(f"{condition.glyph} {condition.words}" for condition in Condition), "⇄ active moved"),
}
_UNUSED: Final = {HeatOf.LAG: {1}, HeatOf.ROLE: {0}, HeatOf.LOOKUPS: set[int]()}


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A partition, or a block of several: of lookups their sum, of lags the largest, of roles the worst.

    `values` has one for each column, None where it isn't known; `levels` their colours, -1 where not.
    """

    span: Span
    values: tuple[float | None, ...]
    levels: tuple[int, ...]

    @property
    def latest(self) -> float | None:
        """The newest value."""
        return self.values[-1] if self.values else None

    @property
    def largest(self) -> float | None:
        """The largest value of the time that is shown."""
        return max((value for value in self.values if value is not None), default=None)

    @property
    def moves(self) -> int:
        """How often the active moved, in a map of roles."""
        return self.levels.count(MOVED)


@dataclass(frozen=True, slots=True)
class HeatView:
    """A heat map of one store. `times_ms`: epoch milliseconds of the columns."""

    of: HeatOf
    stores: tuple[str, ...]
    store: str | None
    total: int
    shown: Span | None
    times_ms: tuple[int, ...]
    rows: tuple[HeatRow, ...]
    levels: tuple[Level, ...]


def heat_view(recorder: Recorder, of: HeatOf, store: str | None, first: int | None, last: int | None) -> HeatView:
    """Return the heat map of a store, or of the first if none is named."""
    fleet = recorder.fleet
    names = () if fleet is None else tuple(each.name for each in fleet.stores)
    shown = recorder.store(store) if store is not None else (fleet.stores[0] if fleet and fleet.stores else None)
    levels = tuple(Level(number, words) for number, words in enumerate(_LEVELS[of]) if number not in _UNUSED[of])
    if shown is None:
        return HeatView(of, names, store, 0, None, (), (), levels)
    total = partition_count(shown)
    span = within(total, first, last)
    columns = [(at_ms, column) for at_ms, column in recorder.samples.of(shown.name) if len(column.states) == total]
    rows = (
        ()
        if span is None
        else tuple(_row(part, of, [column for _, column in columns]) for part in blocks(span, ROWS_MAX))
    )
    return HeatView(of, names, shown.name, total, span, tuple(at_ms for at_ms, _ in columns), rows, levels)


def _row(span: Span, of: HeatOf, columns: Iterable[StoreColumn]) -> HeatRow:
    values: list[float | None] = []
    levels: list[int] = []
    part = slice(span.first, span.last + 1)
    for column in columns:
        if of is HeatOf.ROLE:
            worst, moved = max(column.states[part]), any(column.moved[part])
            values.append(float(worst))
            levels.append(MOVED if moved else worst)
            continue
        numbers = _known((column.lookups if of is HeatOf.LOOKUPS else column.lags)[part])
        value = None if not numbers else math.fsum(numbers) if of is HeatOf.LOOKUPS else max(numbers)
        values.append(None if value is None else round(value, 2))
        levels.append(-1 if value is None else level_of(value))
    return HeatRow(span, tuple(values), tuple(levels))


def _known(numbers: Iterable[float]) -> list[float]:
    return [number for number in numbers if not math.isnan(number)]


def level_of(value: float) -> int:
    """Return the colour of a rate or a lag: 0 for zero, then by powers of ten."""
    return 0 if value <= 0 else bisect_right(_BOUNDS, value)


def drawn(rows: Sequence[HeatRow], width: int, height: int) -> dict[int, str]:
    """Return an SVG path for each colour, of cells of this size: a map of any size is a few elements."""
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        x = 0
        while x < len(row.levels):
            level, begun = row.levels[x], x
            while x < len(row.levels) and row.levels[x] == level:
                x += 1
            if level >= 0:
                run = (x - begun) * width
                paths.setdefault(level, []).append(f"M{begun * width} {y * height}h{run}v{height - 1}h-{run}z")
    return {level: "".join(parts) for level, parts in sorted(paths.items())}
