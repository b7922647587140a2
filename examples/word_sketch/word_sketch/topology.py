"""The topology: the key of a message is its channel; each channel has one sketch of all its words.

Run it with `statehouse process word_sketch.topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from processor.application import Application
from processor.rows import KEY, TIMESTAMP, VALUE

from .sketches import new_sketch, read_sketch

application_id = "word-sketch"

MESSAGES = "messages"
STORE = "word-sketches"
KIND = "count-min-sketch"

_CHANNEL, _WORD = "channel", "word"
_OUT = Row(KEY, VALUE, TIMESTAMP)


def build(app: Application) -> None:
    """Declare the source, the query and the store."""
    app.store(STORE, sketches(app.stream(MESSAGES)), kind=KIND, value_serde="bytes")


def sketches(messages: DataFrame) -> DataFrame:
    """Return the serialized sketch of a channel each time a message changes it."""
    said = F.lower(F.col(VALUE).cast("string"))
    words = messages.where(F.col(KEY).isNotNull() & F.col(VALUE).isNotNull()).select(
        F.col(KEY).cast("string").alias(_CHANNEL), F.explode(F.split(said, r"\W+")).alias(_WORD), TIMESTAMP
    )
    return (
        words.where(F.col(_WORD) != "")
        .groupBy(_CHANNEL)
        .transformWithState(
            _CountWords(), f"{KEY} string, {VALUE} binary, {TIMESTAMP} timestamp", outputMode="Update", timeMode="None"
        )
    )


class _CountWords(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Keeps the sketch of a channel; puts it out once per batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("sketch", "sketch binary")

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        kept = self._state.get()
        sketch = new_sketch() if kept is None else read_sketch(bytes(kept[0]))
        latest = None
        for row in rows:
            sketch.update(row[_WORD])
            latest = row[TIMESTAMP] if latest is None else max(latest, row[TIMESTAMP])
        data = sketch.serialize()
        self._state.update((data,))
        yield _OUT(key[0], data, latest)

    def close(self) -> None:
        pass
