"""The figures of a bank's readers as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.robustness.figures import percentile
from tests.support.bank_readers import Sort, Tally

_COLUMNS: Final = ("phase", "read", "answers", "torn", "failed", "slowest s", "age p50 ms", "age p99 ms")
_ALL: Final = "all"


def joined(tallies: Iterable[Tally]) -> Tally:
    """Return the figures of several together."""
    found = Tally()
    for each in tallies:
        found.answers += each.answers
        found.torn += each.torn
        found.failed += each.failed
        found.ages_ms += each.ages_ms
        found.slowest_s = max(found.slowest_s, each.slowest_s)
    return found


def ages_ms(tally: Tally) -> tuple[float, float]:
    """Return the ages' median and 99th percentile; 0 of none."""
    ordered = sorted(tally.ages_ms)
    return percentile(ordered, 0.5), percentile(ordered, 0.99)


def table(tallies: Mapping[tuple[str, str], Tally], sorts: Mapping[str, Sort]) -> str:
    """Return a row for each sort of read in all phases, and for each phase one of what asks for moments, and plain."""
    rows = [_row(_ALL, name, joined(each for (_, of), each in tallies.items() if of == name)) for name in sorts]
    for phase in dict.fromkeys(phase for phase, _ in tallies):
        for is_plain, what in ((False, "moments"), (True, "plain")):
            of_phase = [
                each for (of, name), each in tallies.items() if of == phase and sorts[name].is_plain is is_plain
            ]
            rows.append(_row(phase, what, joined(of_phase)))
    lines = [_COLUMNS, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(_COLUMNS))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _row(phase: str, read: str, tally: Tally) -> tuple[str, ...]:
    ages = [f"{age:,.0f}" for age in ages_ms(tally)] if tally.ages_ms else ["", ""]
    counts = (f"{tally.answers:,}", f"{len(tally.torn):,}", f"{len(tally.failed):,}")
    return (phase, read, *counts, f"{tally.slowest_s:.2f}", *ages)
