"""The sample data: three patients' events."""

from __future__ import annotations

from typing import Final

from examples.topic_configs.topology import EVENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}}
RECORDS: Final = [Sample(EVENTS, key, "seen", _BEGAN_MS + n * 1_000) for n, key in enumerate("121312")]
