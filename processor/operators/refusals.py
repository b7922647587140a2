"""Refusals: the reason why a row becomes a dead letter; and the columns that operators need for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, KEY, PLACE_TYPES, REASON, REFUSAL, TIMESTAMP, VALUE, remedy_for
from statehouse.errors import ConfigurationError

_BOOKKEEPING: Final = {
    KEY: "binary",
    VALUE: "binary",
    **PLACE_TYPES,
    TIMESTAMP: "timestamp",
    **dict.fromkeys(REFUSAL, "string"),
}
RefusalCase = tuple[Column, Column | str, Column | str]
"""A condition, the dead-letter reason if it holds, and the detail."""


def require(frame: DataFrame, *needed: str) -> None:
    """Return if the frame has these columns.

    Raises:
        ConfigurationError: it lacks one; the text says what makes it.

    """
    have = frame.columns
    absent = [name for name in needed if name not in have]
    if absent:
        raise ConfigurationError(
            f"the frame has no column {absent[0]!r}; it has {', '.join(have)}: {remedy_for(absent[0])}"
        )


def bookkept(frame: DataFrame, *needed: str) -> DataFrame:
    """Return the frame with ORIGIN and REFUSAL, null where it lacks them.

    Rows without partition and offset have no order among those of the same time, and dead letters then don't say where
    their record is.

    Raises:
        ConfigurationError: it lacks a column that is `needed`; the text says what makes it.

    """
    require(frame, *needed)
    return _with_nulls(frame, _BOOKKEEPING)


def refuse(frame: DataFrame, *refusals: RefusalCase) -> DataFrame:
    """Refuse rows by the first condition that holds; refused rows stay unchanged."""
    frame = _with_nulls(frame, dict.fromkeys(REFUSAL, "string"))
    return judged(frame, [(F.col(REASON).isNotNull(), F.col(REASON), F.col(DETAIL)), *refusals])


def judged(frame: DataFrame, cases: Sequence[RefusalCase]) -> DataFrame:
    """Set REFUSAL by the first case that holds; null if none holds."""
    return frame.withColumns(
        {
            REASON: _first_case([(when, reason) for when, reason, _ in cases]),
            DETAIL: _first_case([(when, detail) for when, _, detail in cases]),
        }
    )


def _with_nulls(frame: DataFrame, types: Mapping[str, str]) -> DataFrame:
    have = frame.columns
    return frame.withColumns({name: F.lit(None).cast(kind) for name, kind in types.items() if name not in have})


def _first_case(cases: Sequence[tuple[Column, Column | str]]) -> Column:
    columns = [(when, F.lit(str(value)) if isinstance(value, str) else value) for when, value in cases]
    (first, value), *rest = columns
    return reduce(lambda chain, case: chain.when(*case), rest, F.when(first, value))
