"""The latest reading of each sensor, with default settings and compacted soon. Run it with `statehouse process`.

A node that starts without state reads the whole changelog. Compaction makes it shorter, but with default settings it
reaches a record late. The settings here say how soon, and what that costs.
"""

from __future__ import annotations

from typing import Final

from processor.application import Application
from processor.operators.text_records import parse_text

application_id = "compaction"

READINGS: Final = "readings"
DEFAULT: Final = "latest"
COMPACTED: Final = "latest-compacted"

CONFIG: Final = {
    # A segment is compacted only when it is closed. Kafka's defaults close one at 1 GiB or after a week.
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "60000",
    # A log is cleaned when so much of it is new since the last time. Kafka has 0.5; less makes brokers work more.
    "min.cleanable.dirty.ratio": "0.05",
    # Nothing younger is compacted. We have 10 minutes by default, within which an interrupted watch can go on.
    "min.compaction.lag.ms": "0",
    # Nothing stays uncompacted for longer, whatever the ratio. Below min.compaction.lag.ms the start is refused.
    "max.compaction.lag.ms": "120000",
    # How long tombstones stay. A node that was away for longer starts over. Kafka has a day.
    "delete.retention.ms": "3600000",
}


def build(app: Application) -> None:
    """Declare the source and both stores. Every reading is a record: no record cache."""
    readings = app.query("readings", parse_text(app.stream(READINGS)))
    readings.store(DEFAULT, value_serde="string", record_cache=False)
    readings.store(COMPACTED, value_serde="string", record_cache=False, config=CONFIG)
