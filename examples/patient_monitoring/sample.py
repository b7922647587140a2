"""The sample data: a patient whose heart beats 120 times in one minute and 7 times in the next, with a fever."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from examples.kafka_samples import Record

PATIENT: Final = "1"
BEGAN: Final = datetime(2024, 1, 31, 9, 2, tzinfo=UTC)
# The first minute's beats are even; the second's go on until it can be told that no more beats of the first will come.
BEATS: Final = tuple(timedelta(milliseconds=500 * number) for number in range(120)) + tuple(
    timedelta(seconds=60 + number) for number in range(7)
)
FEVER_AFTER: Final = timedelta(seconds=30)
TEMPERATURE: Final = 101.2


def pulse_records() -> list[Record]:
    """Records for the pulse-events topic."""
    return [pulse_event(PATIENT, BEGAN + after) for after in BEATS]


def temperature_records() -> list[Record]:
    """Records for the body-temp-events topic."""
    return [temperature_event(PATIENT, BEGAN + FEVER_AFTER, TEMPERATURE)]


def pulse_event(patient: str, time: datetime | None) -> Record:
    """A heart beat's record, without a time if there is none."""
    return patient.encode(), _json({} if time is None else {"timestamp": iso(time)})


def temperature_event(patient: str, time: datetime | None, temperature: float, unit: str = "F") -> Record:
    """A body temperature's record, without a time if there is none."""
    measured = {"temperature": temperature, "unit": unit}
    return patient.encode(), _json(measured if time is None else {"timestamp": iso(time), **measured})


def iso(time: datetime) -> str:
    """Return a time as the events have it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
