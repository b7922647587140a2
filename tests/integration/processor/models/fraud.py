"""Payments of cards, and the sliding windows that they make: a dictionary by card and begin of a window."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from processor.testing import Record
from tests.integration.processor.models import BEGAN_MS, NO_DOCUMENTS, Refused, RefusedRecord, document, typed

MINUTE_MS = 60_000
WINDOW_MS, SLIDE_MS, GRACE_MS = 10 * MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS
AHEAD_MS = 60 * MINUTE_MS
COUNT_MAX, CENTS_MAX, PAYMENT_CENTS_MAX = 5, 100_000, 10_000_000
STEP_MS = 2_000


def made(count: int, seed: int) -> list[Record]:
    """Return payments in the order in which they come, by a clock that goes on `STEP_MS` with each."""
    rng = random.Random(seed)
    records: list[Record] = []
    for nth in range(count):
        now_ms = BEGAN_MS + nth * STEP_MS
        card, fate = f"card-{rng.randrange(30)}", rng.random()
        if fate < 0.05 and records:
            sent = rng.choice(records[-50:])
            records.append(Record(sent.key, sent.value, now_ms))  # the same payment again
            continue
        if fate < 0.09:
            records.append(Record(card, *rng.choice(_malformed(nth, now_ms)), now_ms))
            continue
        late_ms = rng.choice([0, 0, rng.randrange(GRACE_MS // 2)])  # out of order, within the grace
        if fate < 0.14:
            late_ms = rng.randrange(GRACE_MS, 4 * GRACE_MS + nth * STEP_MS)
        cents = rng.choice([rng.randrange(1, 2_000), rng.randrange(1, 2_000), 60_000])
        key = None if fate < 0.15 and fate >= 0.14 else card
        records.append(Record(key, _payment(nth, cents, now_ms - late_ms), now_ms))
    return records


def _payment(nth: int, cents: Any, at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"id": f"p{nth}", "cents": cents, "at": at})


def _malformed(nth: int, now_ms: int) -> list[tuple[str | bytes | None]]:
    good = json.loads(_payment(nth, 100, now_ms))
    wrong: list[dict[str, Any]] = [
        {"cents": "9.50"},
        {"cents": None},
        {"cents": 1.5},
        {"cents": 0},
        {"cents": -3},
        {"cents": PAYMENT_CENTS_MAX + 1},
        {"id": 7},
        {"at": now_ms},
        {"at": "yesterday"},
        {"at": "1969-12-31T23:59:59Z"},
        {"at": datetime.fromtimestamp((now_ms + AHEAD_MS) / 1000 + 1, UTC).isoformat(timespec="seconds")},
    ]
    texts = [json.dumps(good | each) for each in wrong]
    texts += [json.dumps({name: good[name] for name in good if name != gone}) for gone in good]
    return [(None,), *((text,) for text in texts), *((each,) for each, _ in NO_DOCUMENTS)]


def expected(batches: Iterable[list[Record]]) -> tuple[dict[tuple[str, int], dict[str, Any]], Refused]:
    """Return each card's windows, and the refused records.

    A batch ends with a watermark: the latest payment so far, less the grace. A window takes nothing more once its end
    was reached by the watermark that the batch before the last ended with. So the payments of a batch, and of the one
    before it, make none of it late.
    """
    paid: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    refused: Refused = Counter()
    latest_ms = watermark_ms = last_watermark_ms = 0
    for batch in batches:
        for record in batch:
            try:
                number, cents, at_ms = _judged(record)
            except RefusedRecord as reason:
                refused[reason.args[0], record.key, record.value] += 1
                continue
            latest_ms = max(latest_ms, at_ms)
            last_begin = at_ms - at_ms % SLIDE_MS
            for begin in range(last_begin - WINDOW_MS + SLIDE_MS, last_begin + 1, SLIDE_MS):
                if begin + WINDOW_MS > watermark_ms:
                    paid[str(record.key), begin].add((number, cents))
        watermark_ms, last_watermark_ms = last_watermark_ms, latest_ms - GRACE_MS
    return {window: _shown(payments) for window, payments in paid.items()}, refused


def _shown(payments: set[tuple[str, int]]) -> dict[str, Any]:
    count, cents = len(payments), sum(cents for _, cents in payments)
    return {"count": count, "cents": cents, "suspicious": count > COUNT_MAX or cents > CENTS_MAX}


def _judged(record: Record) -> tuple[str, int, int]:
    fields = document(record.value)
    number, cents, text = typed(fields, "id", str), typed(fields, "cents", int), typed(fields, "at", str)
    try:
        at_ms = round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as error:
        raise RefusedRecord("unparsable_time") from error
    if at_ms < 0:
        raise RefusedRecord("negative_time")
    if at_ms > record.timestamp_ms + AHEAD_MS:
        raise RefusedRecord("future_time")
    if record.key is None:
        raise RefusedRecord("null_key")
    if not 1 <= cents <= PAYMENT_CENTS_MAX:
        raise RefusedRecord("amount_out_of_range")
    return number, cents, at_ms
