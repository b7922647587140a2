"""The rows that a task of the sink gets: the columns that it needs, in their order."""

from __future__ import annotations

from typing import Final

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE

RECORD: Final = "_record"
"""The only column that a task gets: a struct of those below. Spark's driver spends time on each column of a batch."""
SINK_PARTITION: Final = "_sink_partition"
OUTPUT: Final = "_output"
"""The output of a row, as an index into the target's outputs."""
TIMESTAMP_MS: Final = "_timestamp_ms"
SUFFIX: Final = "_suffix"
"""The bytes that follow the key in the record's key: those of a window or session, else none."""

RECORD_COLUMNS: Final = (OUTPUT, KEY, SUFFIX, VALUE, TIMESTAMP_MS, TOPIC, PARTITION, OFFSET, REASON, DETAIL)
"""A record that isn't placed yet."""
TASK_COLUMNS: Final = (SINK_PARTITION, OUTPUT, KEY, VALUE, TIMESTAMP_MS, TOPIC, PARTITION, OFFSET, REASON, DETAIL)
"""A record that is placed; its key has its suffix."""
NO_TIMESTAMP: Final = 0
"""librdkafka's "now"."""
