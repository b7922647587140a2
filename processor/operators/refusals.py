"""Refusals: the reason why a row becomes a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, REASON

RefusalCase = tuple[Column, Column | str, Column | str]
"""A condition, the dead-letter reason if it holds, and the detail."""


def refuse(frame: DataFrame, *refusals: RefusalCase) -> DataFrame:
    """Refuse rows by the first condition that holds; refused rows stay unchanged. The frame must have REFUSAL."""
    return judged(frame, [(F.col(REASON).isNotNull(), F.col(REASON), F.col(DETAIL)), *refusals])


def judged(frame: DataFrame, cases: Sequence[RefusalCase]) -> DataFrame:
    """Set REFUSAL by the first case that holds; null if none holds."""
    return frame.withColumns(
        {
            REASON: _first_case([(when, reason) for when, reason, _ in cases]),
            DETAIL: _first_case([(when, detail) for when, _, detail in cases]),
        }
    )


def _first_case(cases: Sequence[tuple[Column, Column | str]]) -> Column:
    columns = [(when, F.lit(str(value)) if isinstance(value, str) else value) for when, value in cases]
    (first, value), *rest = columns
    return reduce(lambda chain, case: chain.when(*case), rest, F.when(first, value))
