"""The sample data: 40 sensors with 500 readings each, of about a kilobyte and of now.

Brokers count a record's age from its timestamp: readings of last year would be compacted soon with any settings.
"""

from __future__ import annotations

import time
from typing import Final

from examples.compaction.topology import READINGS
from statehouse.local.samples import Sample

_SENSORS: Final = 40
_COUNT: Final = 20_000
_BEGAN_MS: Final = int(time.time() * 1000) - _COUNT
TOPICS: Final[dict[str, dict[str, str]]] = {READINGS: {}}
RECORDS: Final = [
    Sample(READINGS, f"sensor-{nth % _SENSORS}", f"{nth} {'.' * 1000}", _BEGAN_MS + nth) for nth in range(_COUNT)
]
