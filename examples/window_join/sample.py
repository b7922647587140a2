"""The sample data: orders, and payments before, after and too late."""

from __future__ import annotations

import json
from typing import Final

from examples.window_join.topology import ORDERS, PAYMENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
TOPICS: Final[dict[str, dict[str, str]]] = {ORDERS: {}, PAYMENTS: {}}


def order(key: str, amount: float, after_ms: int) -> Sample:
    """Return an order at this time after the start of the sample."""
    return Sample(ORDERS, key, json.dumps({"amount": amount}), _BEGAN_MS + after_ms)


def payment(key: str, method: str, after_ms: int) -> Sample:
    """Return a payment at this time after the start of the sample."""
    return Sample(PAYMENTS, key, json.dumps({"method": method}), _BEGAN_MS + after_ms)


RECORDS: Final = [
    order("o-1", 10.5, 0),
    payment("o-2", "card", HOUR_MS),
    order("o-2", 20, 2 * HOUR_MS),
    order("o-2", 25, 2 * HOUR_MS),
    payment("o-1", "cash", DAY_MS),
    payment("o-1", "card", 3 * DAY_MS + 1),
    order("o-3", 30, 3 * DAY_MS),
]
