"""Events and profiles of users, and what is known of each user after them: a dictionary by user."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from processor.testing import Record
from tests.integration.processor.models import (
    BEGAN_MS,
    NO_DOCUMENTS,
    Refused,
    RefusedRecord,
    document,
    optional,
    typed,
)

USERS, PARTITIONS = 40, 2
CENTS_MAX = 10_000_000
EVENTS, PROFILES = "user-events", "profiles"
Placed = tuple[str, Record]
"""A record and its topic."""


def made(count: int, seed: int) -> list[Placed]:
    """Return events and profiles in the order in which they come, with event times in any order."""
    rng = random.Random(seed)
    placed: list[Placed] = []
    for nth in range(count):
        number, now_ms, fate = rng.randrange(USERS), BEGAN_MS + nth * 10, rng.random()
        user, partition = f"user-{number}", rng.randrange(PARTITIONS)
        if fate < 0.15:
            value = rng.choice([None, *(_profile(*each) for each in (("NO", "free"), ("PE", None), ("ß", "pro")))])
            if fate < 0.02:
                value = rng.choice([each for each, _ in NO_DOCUMENTS] + ['{"country": 7}', '{"plan": "pro"}'])
            at_ms = now_ms - rng.choice([0, 0, rng.randrange(2_000)])
            key = None if 0.02 < fate < 0.025 else user
            placed.append((PROFILES, Record(key, value, at_ms, number % PARTITIONS)))
        elif fate < 0.2 and placed:
            topic, sent = rng.choice(placed[-50:])
            placed.append((topic, Record(sent.key, sent.value, now_ms, sent.partition)))  # the same record again
        elif fate < 0.24:
            placed.append((EVENTS, Record(user, rng.choice(_malformed(now_ms)), now_ms, partition)))
        else:
            at_ms = now_ms - rng.choice([0, 10, rng.randrange(20_000)])  # ties, too
            kind = rng.choice(["view", "view", "purchase", "logout"])
            key = None if fate < 0.25 else user
            placed.append(
                (EVENTS, Record(key, _event(kind, at_ms, rng.choice([None, 0, 99, 2_500])), now_ms, partition))
            )
    return placed


def _profile(country: str, plan: str | None) -> str:
    return json.dumps({"country": country, "plan": plan})


def _event(kind: Any, at_ms: int, cents: Any) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"kind": kind, "at": at} | ({} if cents is None else {"cents": cents}))


def _malformed(now_ms: int) -> list[str | bytes | None]:
    texts = [_event(kind, now_ms, 1) for kind in ("jump", 7, None)]
    texts += [_event("view", now_ms, cents) for cents in (-1, CENTS_MAX + 1, "1", 1.5)]
    texts += ['{"kind": "view"}', '{"kind": "view", "at": "noon"}', '{"at": "2026-01-31T09:02:00Z"}']
    return [None, *texts, *(each for each, _ in NO_DOCUMENTS)]


def expected(batches: Iterable[list[Placed]]) -> tuple[dict[str, Any], dict[str, Any], Refused]:
    """Return what is known of each user, their last events by event time, and the refused records.

    Sums and last events are the same in any batches. A user's profile is the last one that came; of those in one batch
    it is the one with the latest timestamp.
    """
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    last: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
    profiles: dict[str, dict[str, Any]] = {}
    refused: Refused = Counter()
    offsets = Counter[str]()
    for batch in batches:
        newest: dict[str, tuple[int, dict[str, Any] | None]] = {}
        for topic, record in batch:
            offset = offsets[topic]
            offsets[topic] += 1
            try:
                if topic == PROFILES:
                    user, row = _profile_of(record)
                    if user not in newest or record.timestamp_ms >= newest[user][0]:
                        newest[user] = record.timestamp_ms, row
                    continue
                user, event, at_us = _event_of(record)
            except RefusedRecord as reason:
                refused[reason.args[0], record.key, record.value] += 1
                continue
            is_purchase = event["kind"] == "purchase"
            sums[user].update(events=1, purchases=is_purchase, spent_cents=(event.pop("cents") or 0) * is_purchase)
            place = at_us, record.partition, offset
            last[user] = max(last.get(user, (place, event)), (place, event), key=lambda each: each[0])
        for user, (_, row) in newest.items():
            if row is None:
                profiles.pop(user, None)
            else:
                profiles[user] = row
    nobody = {"country": None, "plan": None}
    features = {user: {**of_user, **profiles.get(user, nobody)} for user, of_user in sums.items()}
    return features, {user: event for user, (_, event) in last.items() if event["kind"] != "logout"}, refused


def _profile_of(record: Record) -> tuple[str, dict[str, Any] | None]:
    if record.key is None:
        raise RefusedRecord("null_key")
    if record.value is None:
        return str(record.key), None
    fields = document(record.value)
    return str(record.key), {"country": typed(fields, "country", str), "plan": optional(fields, "plan", str)}


def _event_of(record: Record) -> tuple[str, dict[str, Any], int]:
    fields = document(record.value)
    kind, text, cents = typed(fields, "kind", str), typed(fields, "at", str), optional(fields, "cents", int)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise RefusedRecord("wrong_type") from error
    if record.key is None:
        raise RefusedRecord("null_key")
    if kind not in {"view", "purchase", "logout"}:
        raise RefusedRecord("unknown_kind")
    if cents is not None and not 0 <= cents <= CENTS_MAX:
        raise RefusedRecord("amount_out_of_range")
    shown = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(record.key), {"kind": kind, "at": shown, "cents": cents}, round(at.timestamp() * 1_000_000)
