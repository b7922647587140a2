"""The columns that frames have by convention, from source to sink.

The frame of a source has ORIGIN. An operator that can refuse rows adds REFUSAL: a row with a `reason` is a dead letter;
it keeps its original key and value, and all operators pass it on unchanged to the sink. So one plan carries results
and refusals, no source is read twice, and both commit in the same transactions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

KEY: Final = "key"
VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
REASON: Final = "reason"
DETAIL: Final = "detail"

RECORD_TIME: Final = "record_time"
"""The Kafka record's own timestamp, when `timestamp` holds the event time."""

PLACE_TYPES: Final = {TOPIC: "string", PARTITION: "int", OFFSET: "bigint"}
"""Where a record is, with Spark's types."""
ORIGIN: Final = (KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP)
REFUSAL: Final = (REASON, DETAIL)

# Further columns of window and session stores: the bounds as Spark TIMESTAMPs, or the struct that Spark's `window` and
# `session_window` make.
WINDOW: Final = "window"
WINDOW_START: Final = "window_start"
SEQUENCE: Final = "sequence"
SESSION_WINDOW: Final = "session_window"
SESSION_START: Final = "session_start"
SESSION_END: Final = "session_end"

# Further columns of a parsed table: the key of the row, as text, and whether the row deletes that key.
TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""How Spark writes times into JSON, with their microseconds."""

TABLE_KEY: Final = "table_key"
DELETED: Final = "deleted"

_OF_SOURCE: Final = "keep the columns of the source, which has it; an aggregate has none"
_OF_SESSIONS: Final = (
    "aggregate_sessions(...) makes it; or group by F.session_window(...), and keep its column `session_window`"
)
MADE_BY: Final = {
    TOPIC: _OF_SOURCE,
    PARTITION: _OF_SOURCE,
    OFFSET: _OF_SOURCE,
    REASON: "parse_json(...), or another parser, adds it",
    DETAIL: "parse_json(...), or another parser, adds it",
    TABLE_KEY: "parse_json_table(...), or another parser of tables, adds it",
    DELETED: "parse_json_table(...), or another parser of tables, adds it",
    RECORD_TIME: "rename the source's timestamp to it before parsing, as in withColumnRenamed('timestamp', "
    "'record_time')",
    TIMESTAMP: "keep the column of the source, which has it, or set it with read_event_time(...)",
    WINDOW: "group by F.window(...), which makes it",
    WINDOW_START: "group by F.window(...), and keep its column `window`, or make this one with withColumn(...)",
    SESSION_START: _OF_SESSIONS,
    SESSION_END: _OF_SESSIONS,
}
"""How a frame gets a column that people don't make themselves."""


def remedy_for(column: str) -> str:
    """Return what to do about a frame that lacks a column."""
    return MADE_BY.get(column, "make it with withColumn(...)")


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it literally: a dot in it means no field of a struct."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


class DeadLetterReason(StrEnum):
    """Why a record was refused: the `reason` header of a dead letter. Operators may add their own reasons."""

    NOT_JSON = "not_json"
    NOT_DECODABLE = "not_decodable"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    NULL_VALUE = "null_value"
    NULL_KEY = "null_key"
    INVALID_TIME = "invalid_time"
    UNPARSABLE_TIME = "unparsable_time"
    NEGATIVE_TIME = "negative_time"
    FUTURE_TIME = "future_time"
    INVALID_SEQUENCE = "invalid_sequence"
    EXPRESSION_FAILED = "expression_failed"
    """An SQL expression of `attach` can't be computed for the entry."""
    RAISED = "raised"
    """People's own function raised an exception for the record; the detail says which, and where."""
    UNSUPPORTED_OPERATION = "unsupported_operation"
    """A change of a database that is no change of a row, such as the truncation of a table."""
    UNREADABLE_VALUE = "unreadable_value"
    """The store's serde can't read the value: no reader could, either."""
