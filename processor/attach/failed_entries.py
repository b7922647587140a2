"""Makes dead letters of entries for which an expression can't be computed; the entries leave the store."""

from __future__ import annotations

from typing import Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.columns.mapping import FAILED
from processor.rows import DETAIL, KEY, PLACE_TYPES, REASON, TIMESTAMP, VALUE, DeadLetterReason

log = structlog.get_logger(__name__)

_KNOWN_MAX: Final = 100_000
"""Keys whose dead letters are known to be written. Beyond, a state that is read as a whole writes them again."""
_ROWS: Final = "_rows"


class FailedEntries:
    """The entries of one state that can't be computed, while it is followed.

    A state that is read as a whole has the same failures each time: each is reported once.
    """

    def __init__(self, session: SparkSession, store: str) -> None:
        self._session, self._store = session, store
        self._told: set[tuple[bytes, str]] = set()
        self._count = 0

    def count(self, frame: DataFrame) -> None:
        """Read a frame to its end, and note how many of its rows have failed."""
        (found,) = frame.agg(F.count("*"), F.count(FAILED)).collect()
        self._count = int(found[1])

    def as_dead_letters(self, frame: DataFrame, *, repeats: bool) -> DataFrame:
        """Return the rows of a frame that was counted, for the sink: a failed one is a dead letter, and a tombstone.

        `repeats`: the frame has all failures that the state has, those that were reported before, too.
        """
        if self._count == 0:
            return frame.drop(FAILED)
        failed = F.col(FAILED)
        known: set[tuple[bytes, str]] = set()
        if repeats:
            now = {
                (bytes(row[0]), row[1])
                for row in frame.where(failed.isNotNull() & F.col(KEY).isNotNull())
                .select(KEY, FAILED)
                .limit(_KNOWN_MAX)
                .collect()
            }
            known, self._told = now & self._told, now
        log.warning(
            "entries can't be computed: they become dead letters", store=self._store, entries=self._count - len(known)
        )
        told = F.lit(False)
        if known:
            rows = self._session.createDataFrame(sorted(known), f"{KEY} binary, {FAILED} string")
            frame = frame.join(F.broadcast(rows.withColumn("_told", F.lit(True))), [KEY, FAILED], "left")
            told = F.col("_told").isNotNull()
        nothing = F.lit(None).cast("string")
        has_key = ~failed.startswith("--key ")
        tombstone = F.struct(F.col(VALUE), nothing.alias(REASON), nothing.alias(DETAIL))
        letter = F.struct(
            F.lit(None).cast("binary").alias(VALUE),
            F.lit(DeadLetterReason.EXPRESSION_FAILED.value).alias(REASON),
            F.concat(F.lit(f"store {self._store!r}: it can't be computed for this entry: "), failed).alias(DETAIL),
        )
        rows_of = F.array_compact(
            F.array(F.when(failed.isNull() | has_key, tombstone), F.when(failed.isNotNull() & ~told, letter))
        )
        made = frame.select(KEY, TIMESTAMP, F.explode(rows_of).alias(_ROWS))
        # The sink expects these of rows that may be dead letters, and they come from no record.
        origin = [F.lit(None).cast(kind).alias(name) for name, kind in PLACE_TYPES.items()]
        return made.select(KEY, TIMESTAMP, f"{_ROWS}.*", *origin)
