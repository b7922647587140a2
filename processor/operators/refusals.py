"""Refusals: the reason why a row becomes a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, REASON

RefusalCase = tuple[Column, str, Column | str]
"""A condition, the dead-letter reason if it holds, and the detail."""


def refuse(frame: DataFrame, *refusals: RefusalCase) -> DataFrame:
    """Refuse rows by the first condition that holds; refused rows stay unchanged. The frame must have REFUSAL."""
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
    """Return the value of the first case that holds; null if none holds."""
    (first, value), *rest = cases
    return reduce(lambda chain, case: chain.when(*case), rest, F.when(first, value))
