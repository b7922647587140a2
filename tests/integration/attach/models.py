"""What the jobs' states are, computed in plain Python, in the forms of docs/attach.md, written once more here."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from statistics import stdev
from typing import Any
from zoneinfo import ZoneInfo

from tests.integration.attach.events import Event

Batches = Sequence[Sequence[Event]]
Entries = dict[bytes, Any]
MINUTE = timedelta(minutes=1)
LATE = MINUTE
BERLIN = ZoneInfo("Europe/Berlin")


def text_of(data: bytes) -> str:
    """Bytes that should be UTF-8, as text: other bytes as \\xHH, and what looks like that with \\x5C."""
    text = data.decode("utf-8", "surrogateescape")
    text = re.sub(r"\\(?=x[0-9A-Fa-f]{2})", lambda _: "\\x5C", text)
    return re.sub("[\udc80-\udcff]", lambda each: f"\\x{ord(each[0]) - 0xDC00:02X}", text)


def form(value: Any) -> Any:  # noqa: PLR0911 - a table of types
    """A value as JSON has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, str):
        return text_of(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [form(each) for each in value]
    return value


def key_of(**columns: Any) -> bytes:
    """The key of several columns."""
    return json.dumps(form(columns), ensure_ascii=False, separators=(",", ":")).encode()


def plain_key(value: Any) -> bytes | None:
    """The key of one column, as text; there is none for null."""
    return None if value is None else str(form(value)).encode()


def grouped(events: Iterable[Event], key: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        found[key(event)].append(event)
    return found


def everything(batches: Batches) -> list[Event]:
    return [event for batch in batches for event in batch]


def watermarks(batches: Batches) -> list[datetime]:
    """Before each batch, and after the last one: the newest event so far, to the millisecond, less a minute."""
    marks = [datetime.fromtimestamp(0, UTC)]
    newest = marks[0]
    for batch in batches:
        newest = max(newest, *(event.at for event in batch))
        floor = newest.replace(microsecond=newest.microsecond // 1000 * 1000)
        marks.append(max(marks[-1], floor - LATE))
    return marks


def in_time(batches: Batches, ends: Callable[[Event], datetime]) -> list[Event]:
    """The events that don't come late: what is late for a batch was decided by the batch before."""
    marks = watermarks(batches)
    return [e for number, batch in enumerate(batches) for e in batch if ends(e) > marks[max(number - 1, 0)]]


def window_of(at: datetime, length: timedelta = MINUTE) -> datetime:
    since = at - datetime.fromtimestamp(0, UTC)
    return at - since % length


def window_ends(event: Event) -> datetime:
    return window_of(event.at) + MINUTE


def two_columns(batches: Batches) -> Entries:
    found = grouped(everything(batches), lambda e: (e.user, e.at))
    return {
        key_of(user=user, at=at): {"count": len(events), "sum": sum(e.n for e in events)}
        for (user, at), events in found.items()
    }


def latin(batches: Batches) -> Entries:
    found = Counter((e.raw.decode("utf-8", "surrogateescape"), e.n % 3) for e in everything(batches))
    return {
        key_of(_groupingexpression=name, _groupingexpression_2=kind): {"count": count}
        for (name, kind), count in found.items()
    }


def sum_of(numbers: Sequence[Decimal]) -> Decimal:
    with localcontext() as context:
        context.prec = 100
        return sum(numbers, Decimal())


def mean_of(numbers: Sequence[Decimal], digits: int) -> Decimal:
    with localcontext() as context:
        context.prec = 100
        return (sum(numbers, Decimal()) / len(numbers)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


def sums(batches: Batches) -> Entries:
    made = {}
    for user, events in grouped(everything(batches), lambda e: e.user).items():
        amounts = [e.amount for e in events if e.amount is not None]
        bigs = [e.big for e in events if e.big is not None]
        top = max(e.n for e in events)
        made[plain_key(user)] = {
            "total": form(sum_of(amounts)) if amounts else None,
            "mean": form(mean_of(amounts, 6)) if amounts else None,
            "bigs": form(sum_of(bigs)) if bigs else None,
            "big_mean": form(mean_of(bigs, 14)) if bigs else None,
            "since": form(min(e.at for e in events)),
            "until": form(max(e.at for e in events)),
            "top": top,
            "hits": len(events),
            "spread": stdev(e.d for e in events),
            "d_mean": sum(e.d for e in events) / len(events),
            "first": events[0].n,
            "last": events[-1].n,
            "of_top": {e.d for e in events if e.n == top},
        }
    return without_null(made)


def means(batches: Batches) -> Entries:
    made = {}
    for user, events in grouped(everything(batches), lambda e: e.user).items():
        bigs = [e.big for e in events if e.big is not None]
        made[plain_key(user)] = {
            "avg": sum(e.d for e in events) / len(events),
            "sum_2": form(sum_of(bigs)) if bigs else None,
            "first": events[0].n,
            "count_2": len(events),
        }
    return without_null(made)


def key_types(batches: Batches) -> Entries:
    found = Counter((e.amount, e.tag) for e in everything(batches))
    return {key_of(amount=amount, tag=tag): {"count": count} for (amount, tag), count in found.items()}


def structs(batches: Batches) -> Entries:
    found = grouped(everything(batches), lambda e: tuple(e.place.items()))
    made = {}
    for place, events in found.items():
        newest = max(events, key=lambda e: (e.n, e.at))
        shown = {"n": newest.n, "place": dict(place), "at": newest.at}
        made[json.dumps(form(dict(place)), ensure_ascii=False, separators=(",", ":")).encode()] = {"max": form(shown)}
    return made


def windows(batches: Batches) -> dict[tuple[str | None, datetime], int]:
    """The windows that are still there at the end, with their counts."""
    found = Counter((e.user, window_of(e.at)) for e in in_time(batches, window_ends))
    return {each: count for each, count in found.items() if each[1] + MINUTE > watermarks(batches)[-1]}


def window_update(batches: Batches) -> Entries:
    return {
        key_of(window={"start": start, "end": start + MINUTE}, user=user): {"count": count}
        for (user, start), count in windows(batches).items()
    }


def sessions(batches: Batches) -> Entries:
    def gap(event: Event) -> timedelta:
        return timedelta(seconds=5 if event.n % 2 == 0 else 20)

    made = {}
    for user, events in grouped(in_time(batches, lambda e: e.at + gap(e)), lambda e: e.user).items():
        merged: list[list[Any]] = []
        for event in sorted(events, key=lambda e: e.at):
            end = event.at + gap(event)
            if merged and event.at < merged[-1][1]:
                merged[-1][1], merged[-1][2] = max(end, merged[-1][1]), merged[-1][2] + 1
            else:
                merged.append([event.at, end, 1])
        for start, end, count in merged:
            if end > watermarks(batches)[-1]:
                value = {"user": user, "session_window": {"start": start, "end": end}, "count": count}
                made[key_of(user=user, sessionStartTime=start)] = form(value)
    return made


def dedup(batches: Batches) -> Entries:
    return {key_of(user=e.user, tag=e.tag): {} for e in everything(batches)}


def dedup_watermark(batches: Batches) -> Entries:
    epoch = datetime.fromtimestamp(0, UTC)
    return {
        key_of(user=e.user, at=e.at): {"expiresAtMicros": (e.at + LATE - epoch) // timedelta(microseconds=1)}
        for e in in_time(batches, lambda e: e.at)
        if e.at + LATE > watermarks(batches)[-1]
    }


def visits(batches: Batches) -> Entries:
    found = Counter(e.user for e in everything(batches) if e.user is not None)
    return {form(user).encode(): {"seen": seen, "note": form(f"{user} was here")} for user, seen in found.items()}


def profiles(batches: Batches, part: str) -> Entries:
    made: Entries = {}
    for user, events in grouped(everything(batches), lambda e: e.user).items():
        if user is None:
            continue
        if part == "total":
            # Spark hands pandas the session's wall clock, and the job keeps that.
            last = max(e.at.astimezone(BERLIN).replace(tzinfo=UTC) for e in events)
            made[form(user).encode()] = {"n": sum(e.n % 1000 for e in events), "last": form(last)}
        elif part == "numbers":
            made[form(user).encode()] = {"list": [{"n": e.n % 1000} for e in events]}
        else:
            for city, count in Counter(e.place["city"] for e in events).items():
                made[key_of(user=user, city=city)] = {"visits": count}
    return made


def foreach_batch(batches: Batches) -> Entries:
    return {
        n.to_bytes(8, "big"): {"max": max(e.d for e in events)}
        for n, events in grouped(everything(batches), lambda e: e.n).items()
    }


def parts200(batches: Batches) -> Entries:
    return {
        n.to_bytes(8, "big"): {"count": len(events), "max": form(max(e.at for e in events))}
        for n, events in grouped(everything(batches), lambda e: e.n).items()
    }


def rests(batches: Batches) -> Entries:
    """An entry that can't be computed is left out."""
    counts = {key: value["count"] for key, value in parts200(batches).items()}
    return {key: {"rest": 100 / (count - 5)} for key, count in counts.items() if count != 5}


def without_null(made: dict[bytes | None, Any]) -> Entries:
    """A null alone is no key of a store."""
    return {key: value for key, value in made.items() if key is not None}
