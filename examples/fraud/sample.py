"""The sample data: a card that is used often within minutes, one that pays a lot, and payments that can't count."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from examples.fraud.topology import PAYMENTS
from statehouse.local.samples import Sample

TOPICS: Final[dict[str, dict[str, str]]] = {PAYMENTS: {}}
BEGAN_MS: Final = 1_700_000_100_000
"""2023-11-14T22:15:00Z, the begin of a window."""


def payment(card: str | None, number: str, cents: Any, at_ms: int, recorded_ms: int | None = None) -> Sample:  # noqa: ANN401 - also what is wrong
    """Return a payment, recorded when it is made unless `recorded_ms` says otherwise."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    text = json.dumps({"id": number, "cents": cents, "at": at})
    return Sample(PAYMENTS, card, text, at_ms if recorded_ms is None else recorded_ms)


RECORDS: Final = [
    *(payment("4-ann", f"a{nth}", 900 + nth, BEGAN_MS + nth * 20_000) for nth in range(6)),
    payment("4-ann", "a5", 905, BEGAN_MS + 100_000, BEGAN_MS + 130_000),  # sent again: counts once
    payment("4-bob", "b1", 120_000, BEGAN_MS + 60_000),
    payment("4-cid", "c1", 450, BEGAN_MS + 400_000),
    payment("4-cid", "c2", 250, BEGAN_MS + 90_000, BEGAN_MS + 410_000),  # comes late, and counts
    payment("4-cid", "c3", "9.50", BEGAN_MS + 420_000),  # cents as text
    payment("4-cid", "c4", -450, BEGAN_MS + 430_000),
]
