"""The sample data: four patients and two wards; one patient moves, one goes home, one ward gets a new name."""

from __future__ import annotations

import json
from typing import Any, Final

from examples.wards.topology import PATIENTS, WARDS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
_COMPACTED: Final = {"cleanup.policy": "compact"}
TOPICS: Final[dict[str, dict[str, str]]] = {PATIENTS: _COMPACTED, WARDS: _COMPACTED}
_ROWS: Final[list[tuple[str, str, dict[str, Any] | None]]] = [
    (WARDS, "w-1", {"name": "Surgery", "floor": 2}),
    (WARDS, "w-2", {"name": "Children", "floor": 1}),
    (PATIENTS, "1", {"name": "Ann", "ward": "w-1"}),
    (PATIENTS, "2", {"name": "Bob", "ward": "w-1"}),
    (PATIENTS, "3", {"name": "Cid", "ward": None}),
    (PATIENTS, "4", {"name": "Dan", "ward": "w-2"}),
    (PATIENTS, "2", {"name": "Bob", "ward": "w-2"}),
    (PATIENTS, "4", None),
    (WARDS, "w-1", {"name": "Surgery and X-ray", "floor": 3}),
]
RECORDS: Final = [
    Sample(topic, key, None if row is None else json.dumps(row), _BEGAN_MS + n * 60_000)
    for n, (topic, key, row) in enumerate(_ROWS)
]
