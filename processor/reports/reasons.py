"""Which reasons of dead letters a query's report names: operators may make reasons of their own, any number. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from statehouse.errors import ContractError
from statehouse.errors.checked import checked_text

NAMED_MAX: Final = 20
OTHERS: Final = "others"


def most_frequent(counts: Counter[str]) -> dict[str, int]:
    """Return the numbers of the most frequent reasons, and as OTHERS the number of all that aren't named.

    A reason that isn't printable, or is long, isn't named: readers would refuse the report.
    """
    named = dict(
        Counter({reason: number for reason, number in counts.items() if _is_name(reason)}).most_common(NAMED_MAX)
    )
    if left := counts.total() - sum(named.values()):
        named[OTHERS] = named.get(OTHERS, 0) + left
    return named


def _is_name(reason: str) -> bool:
    try:
        return bool(checked_text("reason", reason))
    except ContractError:
        return False
