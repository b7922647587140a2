"""The sample data: three users, one without a profile, an event that comes late, a logout, and an unknown kind."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from examples.features.topology import EVENTS, PROFILES
from statehouse.local.samples import Sample

TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}, PROFILES: {"cleanup.policy": "compact"}}
BEGAN_MS: Final = 1_700_000_000_000


def event(user: str | None, kind: str, at_ms: int, cents: int | None = None, recorded_ms: int | None = None) -> Sample:
    """Return an event, recorded when it happens unless `recorded_ms` says otherwise."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    text = json.dumps({"kind": kind, "at": at, "cents": cents})
    return Sample(EVENTS, user, text, at_ms if recorded_ms is None else recorded_ms)


def profile(user: str, country: str | None, plan: str | None, at_ms: int) -> Sample:
    """Return a profile; without a country it is deleted."""
    text = None if country is None else json.dumps({"country": country, "plan": plan})
    return Sample(PROFILES, user, text, at_ms)


RECORDS: Final = [
    profile("ann", "NO", "free", BEGAN_MS),
    profile("bob", "PE", None, BEGAN_MS),
    event("ann", "view", BEGAN_MS + 1_000),
    event("ann", "purchase", BEGAN_MS + 3_000, 1250),
    event("ann", "view", BEGAN_MS + 2_000, recorded_ms=BEGAN_MS + 4_000),  # comes late: counts, but isn't the last
    event("bob", "purchase", BEGAN_MS + 5_000, 300),
    event("bob", "logout", BEGAN_MS + 6_000),
    event("cid", "view", BEGAN_MS + 7_000),
    event("cid", "jump", BEGAN_MS + 8_000),  # an unknown kind
    profile("ann", "NO", "pro", BEGAN_MS + 9_000),
]
