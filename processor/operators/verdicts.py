"""Verdicts on rows: why one becomes a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, REASON

Refusal = tuple[Column, str, Column | str]
"""A condition, the reason it is one for, and words about it."""


def refuse(frame: DataFrame, *refusals: Refusal) -> DataFrame:
    """Give rows without a verdict that of the first condition that holds. The frame must have VERDICT."""
    judged = (F.col(REASON).isNotNull(), F.col(REASON), F.col(DETAIL))
    cases = [judged] + [
        (when, F.lit(str(reason)), F.lit(detail) if isinstance(detail, str) else detail)
        for when, reason, detail in refusals
    ]
    return frame.withColumns(
        {
            REASON: first_case([(when, reason) for when, reason, _ in cases]),
            DETAIL: first_case([(when, detail) for when, _, detail in cases]),
        }
    )


def first_case(cases: Sequence[tuple[Column, Column]]) -> Column:
    """Return the value of the first case that holds, null if none does."""
    (first, value), *rest = cases
    return reduce(lambda chain, case: chain.when(*case), rest, F.when(first, value))
