"""Tells from the schema of an aggregation's state which aggregates it is of, as far as it says so.

Spark gives the columns of a state the names of its aggregates' buffers. Some of them say what they are of:

| buffers | aggregate |
|---|---|
| `sum`, and a `count` that may be null (the buffer of `count` itself can't be) | `avg` |
| `sum`, `isEmpty` | `sum` of decimals; of other numbers `try_sum` |
| `first` or `last`, `valueSet` | `first`, `last` |
| `valueWithExtremumOrdering`, `extremumOrdering` | `max_by` or `min_by`: the value is the first one |
| `n`, and `avg` or `xAvg` with what follows | a statistic such as `stddev` or `corr`: not known which |

A `sum` of decimals of at most 8 digits, and an `avg` of at most 11, are kept as whole numbers: that can't be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, DataType, DecimalType, DoubleType, LongType, StructField, StructType

_PRECISION_MAX: Final = 38
_SUM_ADDS: Final = 10
"""The digits that Spark gives to a sum beyond those of what is summed (org.apache.spark.sql.…aggregate.Sum)."""
_REMEDY: Final = "name the job's aggregates (--aggregate NAME=SQL) and the types of what they read (--input)"


@dataclass(frozen=True, slots=True)
class AggregateColumns:
    """Columns of the state that belong together.

    Attributes:
        uses: the columns, by names that differ.
        name: of the value that is made of them.
        sql: the aggregate, with `{}` for what it reads; None if no expression is needed.
        input: the type of what it reads.
        served: those of the columns that are served as they are.
        doubt: what the schema can't tell.

    """

    uses: Sequence[str]
    name: str
    sql: str | None = None
    input: DataType | None = None
    served: Sequence[str] = ()
    doubt: str = ""


def aggregates_of(kind: StructType, names: Sequence[str]) -> list[AggregateColumns]:
    """Return the groups of a state's columns, in their order.

    Args:
        kind: the columns, with the names that Spark gives.
        names: those that differ.

    """
    made: list[AggregateColumns] = []
    place = 0
    while place < len(kind.fields):
        found = _begins(kind.fields[place:], names[place:])
        made.append(found)
        place += len(found.uses)
    return made


def _begins(fields: Sequence[StructField], names: Sequence[str]) -> AggregateColumns:
    of = [each.name for each in fields]
    kind = fields[0].dataType
    if of[:2] == ["sum", "count"] and fields[1].nullable and isinstance(fields[1].dataType, LongType):
        return _avg(kind, names[:2])
    if of[:2] == ["sum", "isEmpty"]:
        return AggregateColumns(
            names[:2], names[0], "sum({})" if isinstance(kind, DecimalType) else "try_sum({})", _summed(kind)
        )
    if tuple(of[:2]) in _FIRST_ALONE:
        return AggregateColumns(names[:2], names[0], served=names[:1])
    if of[0] == "n" and of[1:2] and of[1] in _STATISTICS:
        count = 1 + next((place for place, name in enumerate(of[1:]) if name not in _STATISTICS), len(of) - 1)
        doubt = f"{', '.join(names[:count])}: what a statistic as stddev or corr keeps, nobody can see which: {_REMEDY}"
        return AggregateColumns(names[:count], names[0], served=names[:count], doubt=doubt)
    opaque = next((place for place, each in enumerate(fields) if not _is_opaque(each)), len(fields))
    if opaque:
        return AggregateColumns(
            names[:opaque],
            names[0],
            doubt=f"{names[0]}{', …' if opaque > 1 else ''}: in a form that only Spark can read (collect_list, "
            "percentile_approx, approx_count_distinct and the like): not served",
        )
    return _alone(fields[0], names[0])


def _is_opaque(field: StructField) -> bool:
    return field.name.startswith("MS[") or (field.name == "buf" and isinstance(field.dataType, BinaryType))


_FIRST_ALONE: Final = {
    ("first", "valueSet"),
    ("last", "valueSet"),
    ("valueWithExtremumOrdering", "extremumOrdering"),
}
_STATISTICS: Final = {"avg", "m2", "m3", "m4", "xAvg", "yAvg", "ck", "xMk", "yMk"}


def _avg(kept: DataType, names: Sequence[str]) -> AggregateColumns:
    doubt = ""
    if isinstance(kept, DoubleType):
        doubt = (
            f"{names[0]}, {names[1]}: served as an avg of numbers; if it is one of decimals of at most 11 digits, "
            f"{_REMEDY}"
        )
    if isinstance(kept, DecimalType) and kept.precision == _PRECISION_MAX:
        doubt = (
            f"{names[0]}, {names[1]}: the avg of decimals of many digits, whose scale can't be seen for sure: {_REMEDY}"
        )
    return AggregateColumns(names, "avg", "avg({})", _summed(kept), doubt=doubt)


def _summed(kept: DataType) -> DataType:
    """Return the type of the summed values, from the type in which Spark keeps their sum."""
    if isinstance(kept, DecimalType):
        digits = kept.precision if kept.precision == _PRECISION_MAX else kept.precision - _SUM_ADDS
        return DecimalType(max(digits, kept.scale, 1), kept.scale)
    return kept


def _alone(field: StructField, name: str) -> AggregateColumns:
    if field.name == "sum" and isinstance(field.dataType, LongType):
        doubt = f"{name}: a sum of whole numbers, or of decimals of at most 8 digits, without their point: {_REMEDY}"
        return AggregateColumns([name], name, served=[name], doubt=doubt)
    return AggregateColumns([name], name, served=[name])
