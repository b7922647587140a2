"""The sample data: sixty patients, each seen twice, and the first ones once more after they were displaced."""

from __future__ import annotations

from typing import Final

from examples.lru_counts.topology import EVENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}}
_SEEN: Final = [number for patient in range(60) for number in (patient, patient)] + [0, 1, 2]
RECORDS: Final = [Sample(EVENTS, f"patient-{number}", "seen", _BEGAN_MS + n * 1_000) for n, number in enumerate(_SEEN)]
