"""How commands show where a lookup may go, and where one went."""

from __future__ import annotations

from statehouse.cli import output
from statehouse.client import Attempt, Explanation, Location


def print_location(place: Location) -> None:
    """Print a key's place, and each candidate with its verdict."""
    output.print_facts(
        [
            ("store", place.store),
            ("partition", place.partition),
            ("epoch", place.epoch),
            ("active", "none" if place.active is None else str(place.active)),
            ("standbys", tuple(map(str, place.standbys))),
        ]
    )
    output.print_table(
        ["CANDIDATE", "ROLE", "USABLE", "REASON", "POSITION", "LAG", "DETAIL"],
        [
            (
                str(candidate.host),
                candidate.role,
                candidate.eligible,
                candidate.reason or "-",
                candidate.position,
                candidate.lag,
                candidate.detail or "-",
            )
            for candidate in place.candidates
        ],
    )


def print_explanation(told: Explanation) -> None:
    """Print what a router knew before a lookup, and what it did for it."""
    print_location(told.location)
    output.print_table(
        ["ASKED", "ROLE", "ROUND", "HEDGE", "SENT AFTER", "TOOK", "OUTCOME", "REASON", "DETAIL"],
        map(_row, told.attempts),
    )
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


def _row(attempt: Attempt) -> tuple[object, ...]:
    return (
        str(attempt.host),
        attempt.role,
        attempt.round,
        attempt.hedge,
        _milliseconds(attempt.sent_after_ms),
        _milliseconds(attempt.took_ms),
        attempt.outcome,
        attempt.reason or "-",
        attempt.detail or "-",
    )


def _milliseconds(number: float) -> str:
    return f"{number:.1f} ms"
