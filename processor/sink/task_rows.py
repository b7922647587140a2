"""The rows that a task of the sink gets: the columns that it needs, in their order."""

from __future__ import annotations

from typing import Final

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE

SINK_PARTITION: Final = "_sink_partition"
OUTPUT: Final = "_output"
"""The output of a row, as an index into the target's outputs."""
TIMESTAMP_MS: Final = "_timestamp_ms"

TASK_COLUMNS: Final = (SINK_PARTITION, OUTPUT, KEY, VALUE, TIMESTAMP_MS, TOPIC, PARTITION, OFFSET, REASON, DETAIL)
NO_TIMESTAMP: Final = 0
"""librdkafka's "now"."""
