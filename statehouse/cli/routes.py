"""How commands show where a lookup may go, and where one went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from statehouse.cli import output
from statehouse.cli.output import Column
from statehouse.client import Attempt, Candidate, Explanation, Location

_CANDIDATES: Final[Sequence[Column[Candidate]]] = (
    Column("CANDIDATE", lambda each: each.host),
    Column("ROLE", lambda each: each.role),
    Column("USABLE", lambda each: each.eligible),
    Column("REASON", lambda each: each.reason or "-"),
    Column("POSITION", lambda each: each.position),
    Column("LAG", lambda each: each.lag),
    Column("DETAIL", lambda each: each.detail or "-"),
)
_ATTEMPTS: Final[Sequence[Column[Attempt]]] = (
    Column("ASKED", lambda each: each.host),
    Column("ROLE", lambda each: each.role),
    Column("ROUND", lambda each: each.round),
    Column("HEDGE", lambda each: each.hedge),
    Column("SENT AFTER", lambda each: _milliseconds(each.sent_after_ms)),
    Column("TOOK", lambda each: _milliseconds(each.took_ms)),
    Column("OUTCOME", lambda each: each.outcome),
    Column("REASON", lambda each: each.reason or "-"),
    Column("DETAIL", lambda each: each.detail or "-"),
)


def print_location(place: Location) -> None:
    """Print a key's place, and each candidate with its verdict."""
    output.print_facts(
        [
            ("store", place.store),
            ("partition", place.partition),
            ("epoch", place.epoch),
            ("active", "none" if place.active is None else place.active),
            ("standbys", place.standbys),
        ]
    )
    output.print_columns(_CANDIDATES, place.candidates)


def print_explanation(told: Explanation) -> None:
    """Print what a router knew before a lookup, and what it did for it."""
    print_location(told.location)
    output.print_columns(_ATTEMPTS, told.attempts)
    output.print_facts(
        [
            ("took", _milliseconds(told.took_ms)),
            ("hedge after", _milliseconds(told.hedge_after_ms)),
            ("budget refused", told.retry_budget_refused or "nothing"),
            ("express way", _express_way(told)),
        ]
    )


def _express_way(told: Explanation) -> str:
    """Say whether the proxy would send such a lookup to a node on its own."""
    if told.takes_express_way is None:
        return "not known"
    return "yes" if told.takes_express_way else f"no: {told.express_obstacle}, {told.express_detail}"


def _milliseconds(number: float) -> str:
    return f"{number:.1f} ms"
