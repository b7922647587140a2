"""The expected results of patient monitoring, computed in plain Python from all events together.

It is independent of the processor, so that tests can compare the two. It ignores lateness: all beats of a window
count, so events must come within its grace, and the pulses and temperatures of an alert within the join's grace.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

WINDOW_MS: Final = 60_000
GRACE_MS: Final = 5_000
HIGH_RATE: Final = 100
FEVER_F: Final = 100.4
UNITS: Final = ("F", "C", None)
WITHIN_MS: Final = 60_000
FUTURE_BOUND_MS: Final = 3_600_000


class Record(NamedTuple):
    """A record with its position in the source topic and its own timestamp."""

    partition: int
    offset: int
    recorded_ms: int
    key: bytes | None
    value: bytes | None


class Event(NamedTuple):
    """A usable record."""

    patient: str
    time_ms: int
    payload: dict[str, Any]


class Alert(NamedTuple):
    """A fast pulse that met a fever."""

    patient: str
    time_ms: int
    value: bytes


Place = tuple[int, int]


def read(records: Iterable[Record]) -> tuple[list[Event], dict[Place, str]]:
    """Return the events, and (partition, offset) -> reason for each record that isn't usable."""
    events: list[Event] = []
    refused: dict[Place, str] = {}
    largest: dict[int, int] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        payload = _payload(record.value)
        if isinstance(payload, str):
            refused[record.partition, record.offset] = payload
        elif record.key is None:
            refused[record.partition, record.offset] = "null_key"
        elif isinstance(time := _time(payload, record, largest), str):
            refused[record.partition, record.offset] = time
        elif payload.get("unit") not in UNITS:
            refused[record.partition, record.offset] = "unknown_unit"
        else:
            largest[record.partition] = max(time, largest.get(record.partition, time))
            events.append(Event(record.key.decode(), time, payload))
    return events, refused


def _payload(value: bytes | None) -> dict[str, Any] | str:
    if value is None:
        return "null_value"
    try:
        payload = json.loads(value)
    except ValueError:
        return "not_json"
    return payload if isinstance(payload, dict) else "wrong_type"


def _time(payload: dict[str, Any], record: Record, largest: dict[int, int]) -> int | str:
    text = payload.get("timestamp")
    if text is None:
        return largest.get(record.partition, record.recorded_ms)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return "unparsable_time"
    time_ms = (time.replace(tzinfo=time.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    if time_ms < 0:
        return "negative_time"
    return time_ms if time_ms <= record.recorded_ms + FUTURE_BOUND_MS else "future_time"


def pulse_counts(pulses: Iterable[Event]) -> dict[tuple[str, int], int]:
    """Return (patient, start of the minute in epoch milliseconds) -> number of beats."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for pulse in pulses:
        counts[pulse.patient, pulse.time_ms // WINDOW_MS * WINDOW_MS] += 1
    return dict(counts)


def alerts(pulses: Iterable[Event], temperatures: Iterable[Event]) -> list[Alert]:
    """Return the alerts of closed minutes, sorted by time."""
    beats = list(pulses)
    now_ms = max((each.time_ms for each in beats), default=0)
    last: dict[tuple[str, int], int] = {}
    for each in beats:
        minute = (each.patient, each.time_ms // WINDOW_MS * WINDOW_MS)
        last[minute] = max(each.time_ms, last.get(minute, 0))
    fevers = [each for each in temperatures if _fahrenheit(each.payload) > FEVER_F]
    found = [
        Alert(patient, max(last[patient, start], fever.time_ms), _alert(rate, fever))
        for (patient, start), rate in pulse_counts(beats).items()
        for fever in fevers
        if rate >= HIGH_RATE
        and start + WINDOW_MS + GRACE_MS <= now_ms
        and fever.patient == patient
        and abs(last[patient, start] - fever.time_ms) <= WITHIN_MS
    ]
    return sorted(found, key=lambda alert: (alert.time_ms, alert.value))


def _fahrenheit(payload: dict[str, Any]) -> float:
    degrees = float(payload["temperature"])
    return degrees if payload["unit"] == "F" else degrees * 9 / 5 + 32


def _alert(rate: int, fever: Event) -> bytes:
    timestamp, temperature, unit = (fever.payload.get(name) for name in ("timestamp", "temperature", "unit"))
    if timestamp is None:
        moment = datetime.fromtimestamp(fever.time_ms // 1000, UTC) + timedelta(milliseconds=fever.time_ms % 1000)
        timestamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    number = repr(float(temperature or 0)).removesuffix(".0")
    measured = f'{{"timestamp":"{timestamp}","temperature":{number},"unit":"{unit}"}}'
    return f'{{"heart_rate":{rate},"body_temp":{measured}}}'.encode()
