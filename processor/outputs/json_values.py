"""Makes the JSON value of a store's rows from their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DELETED, REASON, TIME_FORMAT, VALUE, quoted
from statehouse.errors import ConfigurationError

# A reader finds each column, and times keep their microseconds.
_OPTIONS: Final = {"ignoreNullFields": "false", "timestampFormat": TIME_FORMAT}


def with_json_value(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Set `value` to a JSON object of these columns; a null column is a null in it.

    A dead letter keeps the value of its record, and a row that a parser of tables has marked `deleted` gets none.

    Raises:
        ConfigurationError: no column is named.

    """
    if isinstance(columns, str) or not columns:
        raise ConfigurationError(f"value={columns!r} must be a list of columns, as in value=['total', 'largest']")
    have = frame.columns
    made = F.to_json(F.struct(*(F.col(quoted(name)) for name in columns)), _OPTIONS).cast("binary")
    if DELETED in have:
        made = F.when(~F.col(DELETED), made)
    if REASON in have:
        made = F.when(F.col(REASON).isNull(), made)
        if VALUE in have:
            made = made.otherwise(F.col(VALUE).cast("binary"))
    return frame.withColumn(VALUE, made)
