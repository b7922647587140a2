"""The rows that a task of the sink gets: the columns that it needs, in their order."""

from __future__ import annotations

from typing import Final

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE

ROW: Final = "_row"
"""The row that a record is made of, in the column before it: so that Spark keeps all of a query's columns."""
RECORD: Final = "_record"
"""A record: a struct of the columns below."""
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
"""The time of the write."""
