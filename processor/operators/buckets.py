"""Key programs as Spark's state operator: many keys to a call, many keys to a state value.

A call of Python state has a price whatever it does, some tenths of a millisecond with reading and writing its state. A
call a key would make that the cost of a batch. So keys are hashed into buckets, and a bucket is what Spark knows as a
key: its rows come as one pandas frame, the state of all its keys is one value, an Arrow stream, read and written whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from processor.operators.keyed import GROUP, IN_COLUMNS, InRow, KeyState, Kind, OutRow
from processor.operators.packing import arrow_bytes, arrow_table, pack
from processor.rows import OFFSET, ORIGIN, PARTITION, REASON, TIMESTAMP, TOPIC, VERDICT

# A state value is as large as a bucket's keys take, and a batch reads and writes those of the buckets it touches. More
# buckets cost a batch of many keys more calls, fewer a batch of few keys more state.
_BUCKETS: Final = 64
_BUCKET: Final = "_bucket"
_NO_STATE: Final = KeyState()
_STATE_TYPE: Final = "keys binary"
_KEYS: Final = pa.schema([pa.field(name, pa.string()) for name in ("key", "row", "aggregate")])


class Program(Protocol):
    """What is done with a key's rows of a micro-batch; pure."""

    @property
    def out_columns(self) -> tuple[str, ...]:
        """Names of the columns put out, in order."""
        ...

    def run(self, key: str, rows: Iterable[InRow], state: KeyState) -> tuple[list[OutRow], KeyState | None]:
        """Return the rows to put out and the new state; None where it stays as it is."""
        ...


def keyed_rows(frame: DataFrame, key: Column, kind: Column, payload: Column, letter: Column | None = None) -> DataFrame:
    """Return a judged frame's rows with the columns of IN_COLUMNS: the key, the kind and the payload of each.

    Dead letters need no state: they are grouped by where they came from, to spread them. Theirs is the payload
    `letter`, by default the record and the verdict.
    """
    refused = F.col(REASON).isNotNull()
    somewhere = F.concat(F.col(TOPIC), F.lit("-"), F.col(PARTITION).cast("string"))
    return frame.select(
        F.when(~refused & key.isNotNull(), key.cast("string")).otherwise(somewhere),
        F.when(refused, Kind.DEAD_LETTER.value).otherwise(kind),
        F.unix_millis(TIMESTAMP),
        PARTITION,
        OFFSET,
        F.when(refused, pack(*ORIGIN, *VERDICT) if letter is None else letter).otherwise(payload),
    ).toDF(*IN_COLUMNS)


def apply_by_key(united: DataFrame, program: Program, out_type: str) -> DataFrame:
    """Run a key program on a frame with the columns of IN_COLUMNS; gives the program's own, of the types given."""
    bucket = F.pmod(F.xxhash64(GROUP), F.lit(_BUCKETS)).cast("int")
    return (
        united.withColumn(_BUCKET, bucket)
        .groupBy(_BUCKET)
        .transformWithStateInPandas(
            statefulProcessor=_BucketProcessor(program), outputStructType=out_type, outputMode="Update", timeMode="None"
        )
    )


class _BucketProcessor(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Runs a key program on each key of a bucket."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("keys", _STATE_TYPE)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[int],  # noqa: ARG002
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        by_key: dict[str, list[tuple[Any, ...]]] = {}
        for frame in rows:
            # By place: Spark has other names for columns that begin with an underscore.
            columns = (frame.iloc[:, place].tolist() for place in range(len(IN_COLUMNS)))
            for row in zip(*columns, strict=True):
                by_key.setdefault(row[0], []).append(row)
        keys = self._load()
        out: list[OutRow] = []
        is_changed = False
        for key_text, of_key in by_key.items():
            put_out, state = self._program.run(key_text, of_key, keys.get(key_text, _NO_STATE))
            out += put_out
            if state is not None:
                is_changed = True
                if state.is_empty:
                    keys.pop(key_text, None)
                else:
                    keys[key_text] = state
        if is_changed:
            self._save(keys)
        yield self._frame(out)

    def close(self) -> None:
        pass

    def _frame(self, out: list[OutRow]) -> pd.DataFrame:
        columns = zip(*out, strict=True) if out else [()] * len(self._program.out_columns)
        # Objects, as pandas would make floats of numbers beside nulls.
        named = zip(self._program.out_columns, columns, strict=True)
        return pd.DataFrame({name: pd.Series(list(column), dtype=object) for name, column in named})

    def _load(self) -> dict[str, KeyState]:
        kept = self._state.get()
        if kept is None:
            return {}
        columns = (column.to_pylist() for column in arrow_table(kept[0]).columns)
        return {key: KeyState(row, aggregate) for key, row, aggregate in zip(*columns, strict=True)}

    def _save(self, keys: dict[str, KeyState]) -> None:
        if not keys:
            self._state.clear()
            return
        states = keys.values()
        columns = [list(keys), [state.row for state in states], [state.aggregate for state in states]]
        self._state.update((arrow_bytes([pa.array(column, pa.string()) for column in columns], _KEYS),))
