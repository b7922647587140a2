"""Which of Spark's filters a read takes over, and what it then asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

from statehouse.contract.key_ranges import Comparison, Operator, common_ranges, ranges_of
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import SESSION

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

HAS_FILTERS: Final = hasattr(datasource, "Filter")
"""Whether this Spark pushes filters down; before 4.1 it has none of these classes."""
_NAMES: Final = {
    "EqualTo": Operator.EQUAL,
    "EqualNullSafe": Operator.EQUAL,
    "LessThan": Operator.LESS,
    "LessThanOrEqual": Operator.AT_MOST,
    "GreaterThan": Operator.GREATER,
    "GreaterThanOrEqual": Operator.AT_LEAST,
    "In": Operator.ONE_OF,
    "StringStartsWith": Operator.PREFIX,
}
_OPERATORS: Final[Mapping[type[Filter], Operator]] = MappingProxyType(
    {getattr(datasource, name): operator for name, operator in _NAMES.items()} if HAS_FILTERS else {}
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOWER: Final = frozenset({Operator.EQUAL, Operator.GREATER, Operator.AT_LEAST})
_UPPER: Final = frozenset({Operator.EQUAL, Operator.LESS, Operator.AT_MOST})


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is read: keys of these ranges, of these partitions (None: all), within these times (None: any)."""

    ranges: tuple[KeyRange, ...]
    partitions: frozenset[int] | None = None
    from_ms: int | None = None
    to_ms: int | None = None


def pushed(filters: Iterable[Filter], before: Pushed, key_serde: str, kind: str) -> tuple[Pushed, list[Filter]]:
    """Return what is to be read, and the filters that are left to Spark.

    Comparisons of the key are taken over as a whole, and those of the partition for equality. Comparisons of times only
    narrow what is read: their filters are left, too. `before`: what options say already. `key_serde`: of the key's
    column. `kind`: of the store.
    """
    read, left = before, []
    for each in filters:
        operator = _OPERATORS.get(type(each))
        column = getattr(each, "attribute", ())
        if operator is None:
            left.append(each)
        elif column == ("key",):
            ranges = _key_ranges(key_serde, operator, each.value)
            if ranges is None:
                left.append(each)
            else:
                read = Pushed(common_ranges(read.ranges, ranges), read.partitions, read.from_ms, read.to_ms)
        elif column == ("partition",) and operator in {Operator.EQUAL, Operator.ONE_OF}:
            asked = frozenset(each.value if operator is Operator.ONE_OF else (each.value,)) - {None}
            kept = asked if read.partitions is None else asked & read.partitions
            read = Pushed(read.ranges, kept, read.from_ms, read.to_ms)
        else:
            left.append(each)
            if column in {("start",), ("end",)} and isinstance(each.value, datetime):
                read = _narrowed(read, column[0], operator, each.value, kind)
    return read, left


def _key_ranges(serde: str, operator: Operator, value: Any) -> Sequence[KeyRange] | None:  # noqa: ANN401 - Spark's value
    """Return the ranges that satisfy a comparison; None if that isn't known."""
    if isinstance(value, bytearray):
        value = bytes(value)
    if operator is Operator.ONE_OF:
        value = tuple(each for each in value if each is not None)  # nothing equals null
    try:
        return ranges_of(serde, [Comparison(operator, value)])
    except ValueError:
        return None


def _narrowed(read: Pushed, column: str, operator: Operator, value: datetime, kind: str) -> Pushed:
    """Return the times that are left to read. A window or session that ends early enough also starts so."""
    if value.tzinfo is None:
        return read
    time_ms = (value - _EPOCH) // timedelta(milliseconds=1)
    from_ms, to_ms = read.from_ms, read.to_ms
    if operator in _UPPER:
        to_ms = time_ms if to_ms is None else min(to_ms, time_ms)
    # A lower bound is for the start of windows, and for the end of sessions. A session ends when it starts, or later.
    if operator in _LOWER and (column == "start" or kind == SESSION):
        from_ms = time_ms if from_ms is None else max(from_ms, time_ms)
    if from_ms is not None and to_ms is not None and from_ms > to_ms and kind != SESSION:
        return read  # no window can be in it, and nodes refuse that; Spark finds it out on its own
    return Pushed(read.ranges, read.partitions, from_ms, to_ms)
