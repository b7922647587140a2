"""The sample data: a patient whose heart beats 120 times in one minute and 7 times in the next, and has a fever."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from examples.patient_monitoring.topology import PULSES, TEMPERATURES
from statehouse.local.samples import Sample

TOPICS: Final[dict[str, dict[str, str]]] = {PULSES: {}, TEMPERATURES: {}}
PATIENT: Final = "1"
BEGAN_MS: Final = 1_706_691_720_000
"""2024-01-31T09:02:00Z."""

# The beats of the second minute continue until the first minute is closed.
_BEATS_MS: Final = [*range(0, 60_000, 500), *range(60_000, 67_000, 1_000)]


def pulse(patient: str | None, time_ms: int | None, recorded_ms: int | None = None) -> Sample:
    """Return a heart beat, without a time if `time_ms` is None; by default it is recorded when it happens."""
    return Sample(PULSES, patient, json.dumps(_said(time_ms)), _recorded(time_ms, recorded_ms))


def temperature(
    patient: str | None, time_ms: int | None, degrees: float, unit: str = "F", recorded_ms: int | None = None
) -> Sample:
    """Return a body temperature, as `pulse` does."""
    text = json.dumps({**_said(time_ms), "temperature": degrees, "unit": unit})
    return Sample(TEMPERATURES, patient, text, _recorded(time_ms, recorded_ms))


def iso(time: datetime) -> str:
    """Return a time in the format of the events."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(time_ms: int | None) -> dict[str, str]:
    return {} if time_ms is None else {"timestamp": iso(datetime.fromtimestamp(time_ms / 1000, UTC))}


def _recorded(time_ms: int | None, recorded_ms: int | None) -> int:
    return recorded_ms or time_ms or BEGAN_MS


PULSE_RECORDS: Final = [pulse(PATIENT, BEGAN_MS + after_ms) for after_ms in _BEATS_MS]
FEVER: Final = temperature(PATIENT, BEGAN_MS + 30_000, 101.2)
RECORDS: Final = [FEVER, *PULSE_RECORDS]
