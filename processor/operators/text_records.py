"""Parses records with a plain-text value, and refuses all others; native Spark."""

from __future__ import annotations

from typing import Final

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.refusals import judged, require
from processor.rows import KEY, VALUE, DeadLetterReason
from processor.spark.versions import Feature, ensure_has

TEXT: Final = "text"


def parse_text(frame: DataFrame) -> DataFrame:
    """Read `key` and `value` as UTF-8 text; add the columns `text`, `reason` and `detail`.

    The key becomes text. Records whose key or value is absent or isn't UTF-8 are refused.

    Raises:
        ConfigurationError: Spark is older than 4.0, or the frame has no `key` or no `value`.

    """
    ensure_has(pyspark.__version__, Feature.PARSERS)
    require(frame, KEY, VALUE)
    checks = [
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "the record has no key"),
        (F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value"),
        (~F.is_valid_utf8(F.col(KEY).cast("string")), DeadLetterReason.WRONG_TYPE, "the key is not UTF-8"),
        (~F.is_valid_utf8(F.col(VALUE).cast("string")), DeadLetterReason.WRONG_TYPE, "the value is not UTF-8"),
    ]
    return judged(frame.withColumn(TEXT, F.col(VALUE).cast("string")), checks)
