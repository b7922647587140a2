"""Makes entries of a store from rows of Spark's state: keys and values, serialized.

State has the operator's internal names: `count`, `max`, `_groupingexpression`. A name that comes twice gets a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType, DataType, NullType, StructType

from processor.attach.columns.json_forms import (
    FRACTIONAL,
    INTEGRAL,
    NESTED,
    json_of,
    json_value_of,
    text_of,
    unique_names,
    with_unique_names,
)
from processor.attach.columns.spark_columns import attempt, value_of
from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE, StateValues
from processor.attach.columns.timed_keys import EntryKind, TimedKey, timed_key
from processor.rows import KEY, VALUE
from statehouse.errors import ConfigurationError
from statehouse.keys.columns import KeyColumn, can_be_named
from statehouse.serdes import SERDES

FAILED: Final = "_failed"
"""The expression that can't be computed for the row; null if there is none."""
ENCODING: Final = 2
"""Grows when the same row makes other bytes: the stores are made anew then."""

# Spark wraps a user's own state in a struct of this name.
_WRAPPED: Final = ("groupState", "value")
_LIST: Final = "list"
# Until the end other names than KEY and VALUE, which the state's own columns may have.
_KEY: Final = "_store_key"
_KEY_FAILED: Final = "_key_failed"
_WORD: Final = r"(?<![A-Za-z0-9_]){}(?![A-Za-z0-9_])"


class OnEntryError(StrEnum):
    """What becomes of an entry for which an expression can't be computed."""

    DEAD_LETTER = "dead-letter"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class EntryMapping:
    """How a row of the state becomes an entry.

    Attributes:
        key: an SQL expression over the key's columns; default: the key's only column, or all as a JSON object.
        values: name -> SQL expression over the columns of value and key; default: the value's columns by their names.
        key_serde: default: by the type of the key.
        value_serde: `json` makes an object of `values`; any other takes the only one.
        aggregates: name -> SQL of the job's aggregates, in its order, if the schema of its state doesn't tell.
        inputs: the columns that they read, with their types, as DDL.
        columns: the columns of the value that leave the state; none: all.
        hide: columns of the value that don't.
        shape: whether entries have a window or a session of their own, in addition to the key.
        on_error: what an expression that can't be computed costs.

    """

    key: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    key_serde: str | None = None
    value_serde: str = "json"
    aggregates: Mapping[str, str] = field(default_factory=dict)
    inputs: str = ""
    columns: Sequence[str] = ()
    hide: Sequence[str] = ()
    shape: EntryKind = EntryKind.PLAIN
    on_error: OnEntryError = OnEntryError.DEAD_LETTER

    def __post_init__(self) -> None:
        """Check what can be checked without the state."""
        for what, name in (("key", self.key_serde), ("value", self.value_serde)):
            if name is not None and name not in SERDES:
                raise ConfigurationError(f"{what} serde {name!r} can't be written here: one of {', '.join(SERDES)}")
        if self.value_serde != "json" and len(self.values) != 1:
            raise ConfigurationError(
                f"value serde {self.value_serde!r} takes one value: name it, as in --value total=count"
            )
        if self.inputs and not self.aggregates:
            raise ConfigurationError(
                "--input has the types of what aggregates read: name them, as in --aggregate n=sum(x)"
            )

    @property
    def may_clash(self) -> bool:
        """Whether two keys of the state may become one: those of the default can't."""
        return self.key is not None or self.key_serde is not None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a state, and the values that are made of them.

    Attributes:
        frame: has STATE_KEY and STATE_VALUE, and what else is to be kept.
        finished: the values.

    """

    frame: DataFrame
    finished: StateValues

    @property
    def key_type(self) -> StructType:
        """The columns of the key."""
        return _struct(self.frame, STATE_KEY)

    @property
    def value_type(self) -> StructType:
        """The columns of the value, as the state has them."""
        return _struct(self.frame, STATE_VALUE)

    def timed_key(self, shape: EntryKind) -> TimedKey:
        """Return the parts of the key, for a store of this shape."""
        return timed_key(shape, self.key_type, self.value_type)


def state_rows(frame: DataFrame) -> DataFrame:
    """Return a frame of the state reader with its key and its value as two structs, without names that come twice.

    Other columns stay.
    """
    if "user_map_key" in frame.columns:
        key = F.struct("key.*", "user_map_key.*")
        frame = frame.withColumns({"key": key, "value": F.col("user_map_value")}).drop("user_map_key", "user_map_value")
    elif "list_value" in frame.columns:
        frame = frame.withColumn("value", F.struct(F.col("list_value").alias(_LIST))).drop("list_value")
    frame = _renamed(_renamed(frame, "key"), "value")
    value = _struct(frame, "value")
    inner: list[Column] = []
    names: list[str] = []
    for each in value.fields:
        wrapped = each.dataType if each.name in _WRAPPED else None
        if isinstance(wrapped, StructType):
            inner += [F.col(f"value.`{each.name}`.`{name}`") for name in wrapped.names]
            names += wrapped.names
        elif not isinstance(each.dataType, NullType):
            inner.append(F.col(f"value.`{each.name}`"))
            names.append(each.name)
    columns = [column.alias(name) for column, name in zip(inner, unique_names(names), strict=True)]
    # An operator that only remembers keys has no value.
    return frame.withColumnsRenamed({"key": STATE_KEY}).withColumn(STATE_VALUE, _struct_of(columns)).drop("value")


def entries(rows: Rows, mapping: EntryMapping, keep: Sequence[str] = ()) -> DataFrame:
    """Return each row's record key and value as bytes, next to STATE_KEY, FAILED and the columns in `keep`.

    Raises:
        ConfigurationError: an expression doesn't fit the columns; the text says which there are.

    """
    default, visible = _names(rows, mapping)
    with _fitting(rows, visible):
        return _entries(rows, mapping, keep, default, visible)


@contextmanager
def _fitting(rows: Rows, visible: Sequence[str]) -> Iterator[None]:
    """Say which columns there are if an expression doesn't fit them."""
    try:
        yield
    except AnalysisException as error:
        raise ConfigurationError(
            f"the key or a value can't be made: {str(error).splitlines()[0]}. The key has the columns "
            f"{', '.join(rows.key_type.names) or 'none'}, the value {', '.join(visible) or 'none'}"
        ) from error


def _entries(
    rows: Rows, mapping: EntryMapping, keep: Sequence[str], default: Sequence[str], visible: Sequence[str]
) -> DataFrame:
    session, finished = rows.frame.sparkSession, rows.finished
    timed = rows.timed_key(mapping.shape)
    # The user's SQL has the columns by their names, ours by their places in the state: so nothing is ambiguous.
    tries = {name: f"_finished_{place}" for place, name in enumerate(finished.columns)}
    kept = [*keep, STATE_KEY, STATE_VALUE]
    frame = rows.frame.select(
        *kept, *(attempt(session, column).alias(tries[name]) for name, column in finished.columns.items())
    )
    frame = _with_key(frame, mapping, timed, rows.key_type, [*kept, *tries.values()])
    kept += [_KEY, _KEY_FAILED, *tries.values()]
    of_value = {
        name: value_of(F.col(tries[name])) if name in tries else F.col(f"{STATE_VALUE}.`{name}`") for name in visible
    }
    key_columns = {name: F.col(f"{STATE_KEY}.`{name}`") for name in rows.key_type.names if name not in of_value}
    frame = frame.select(*kept, *(column.alias(name) for name, column in {**key_columns, **of_value}.items()))
    texts = mapping.values
    asked = {name: f"_value_{place}" for place, name in enumerate(texts)}
    frame = frame.select(
        *kept,
        *(F.col(f"`{name}`") for name in default),
        *(attempt(session, F.expr(texts[name])).alias(asked[name]) for name in texts),
    )
    made = {name: value_of(F.col(asked[name])) for name in texts} or {name: F.col(f"`{name}`") for name in default}
    types = frame.select(*(column.alias(name) for name, column in made.items())).schema if made else StructType([])
    if mapping.value_serde == "json":
        whole = _struct_of([column.alias(name) for name, column in made.items()])
        value = json_of(whole, types).cast("binary")
    else:
        ((name, column),) = made.items()
        value = encoded(types[name].dataType, column, mapping.value_serde)
    used = default if not texts else [name for name in tries if any(_has_word(text, name) for text in texts.values())]
    of_key = json_of(F.col(STATE_KEY), rows.key_type)
    failures = [F.when(F.col(_KEY_FAILED), F.concat(F.lit(f"--key {mapping.key} of the key "), of_key))]
    if mapping.on_error is OnEntryError.DEAD_LETTER:
        failures += [
            F.when(F.col(tries[name]).isNull(), F.lit(f"the final value of {name}")) for name in used if name in tries
        ]
        failures += [F.when(F.col(asked[name]).isNull(), F.lit(f"{name} = {text}")) for name, text in texts.items()]
    failed = F.coalesce(*failures)
    return frame.select(
        *keep, STATE_KEY, F.col(_KEY).alias(KEY), F.when(failed.isNull(), value).alias(VALUE), failed.alias(FAILED)
    )


def _with_key(
    frame: DataFrame, mapping: EntryMapping, timed: TimedKey, key_type: StructType, kept: Sequence[str]
) -> DataFrame:
    """Return the frame with the record key as _KEY, and whether it can't be computed as _KEY_FAILED."""
    session = frame.sparkSession
    if mapping.key is None:
        column, kind = _sole_or_struct(StructType([key_type[name] for name in timed.names]))
        keyed, plain, is_failed = frame.select(*kept, column.alias(_KEY)), F.col(_KEY), F.lit(False)
    else:
        named = frame.select(*kept, *(F.col(f"{STATE_KEY}.`{name}`").alias(name) for name in key_type.names))
        keyed = named.select(*kept, attempt(session, F.expr(mapping.key)).alias(_KEY))
        plain, is_failed = value_of(F.col(_KEY)), F.col(_KEY).isNull()
        kind = keyed.select(plain.alias(_KEY)).schema[_KEY].dataType
    serialized = encoded(kind, plain, mapping.key_serde or serde_of(kind))
    return keyed.select(*kept, timed.record_key(serialized).alias(_KEY), is_failed.alias(_KEY_FAILED))


def key_serde(rows: Rows, mapping: EntryMapping) -> str:
    """Return the serde of the store's keys: the one that was named, else the one that fits the type of the key.

    Raises:
        ConfigurationError: the key's expression doesn't fit the columns.

    """
    if mapping.key_serde is not None:
        return mapping.key_serde
    timed = rows.timed_key(mapping.shape)
    if mapping.key is None:
        return serde_of(_sole_or_struct(StructType([rows.key_type[name] for name in timed.names]))[1])
    of_key = rows.frame.select(f"{STATE_KEY}.*")
    with _fitting(rows, _names(rows, mapping)[1]):
        return serde_of(of_key.select(F.expr(mapping.key).alias(KEY)).schema[KEY].dataType)


def key_columns(rows: Rows, mapping: EntryMapping) -> tuple[KeyColumn, ...]:
    """Return the columns that make up the store's keys; none if they aren't JSON documents of several."""
    timed = rows.timed_key(mapping.shape)
    if mapping.may_clash or len(timed.names) < 2:
        return ()
    columns = tuple(KeyColumn(name, rows.key_type[name].dataType.simpleString()) for name in timed.names)
    return columns if all(can_be_named(each.type) for each in columns) else ()


def serde_of(kind: DataType) -> str:
    """Return the serde that fits a key of this type."""
    if isinstance(kind, INTEGRAL):
        return "long"
    if isinstance(kind, FRACTIONAL):
        return "double"
    if isinstance(kind, BinaryType):
        return "bytes"
    return "json" if isinstance(kind, NESTED) else "string"


def encoded(kind: DataType, column: Column, serde: str) -> Column:
    """Return a column's bytes as a serde writes them."""
    if serde == "string":
        return text_of(column, kind).cast("binary")
    if serde == "bytes":
        return column.cast("binary")
    if serde == "long":
        return F.unhex(F.lpad(F.hex(column.cast("bigint")), 16, "0"))
    if serde == "double":
        return F.arrow_udf(double_bytes, "binary")(column.cast("double"))
    return json_value_of(column, kind).cast("binary")


def double_bytes(numbers: pa.Array) -> pa.Array:
    """Return the eight bytes of each number, big-endian."""
    data = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=">f8").tobytes()
    valid = numbers.is_valid().to_pylist()
    made = [data[8 * place : 8 * place + 8] if is_valid else None for place, is_valid in enumerate(valid)]
    return pa.array(made, pa.binary())


def _names(rows: Rows, mapping: EntryMapping) -> tuple[list[str], list[str]]:
    """Return the columns that make the value unless others are named, and all that SQL may name.

    Raises:
        ConfigurationError: a column that is to leave the state, or to stay in it, isn't there.

    """
    finished = rows.finished
    every = [*finished.columns, *(name for name in rows.value_type.names if name not in finished.columns)]
    for option, given in (("--columns", mapping.columns), ("--hide", mapping.hide)):
        absent = [name for name in given if name not in every]
        if absent:
            raise ConfigurationError(
                f"{option} {', '.join(absent)}: the state's value has no such column, but {', '.join(every) or 'none'}"
            )
    visible = [name for name in every if name not in mapping.hide and (not mapping.columns or name in mapping.columns)]
    default = list(dict.fromkeys(mapping.columns)) or list(finished.default)
    return [name for name in default if name in visible], visible


def _sole_or_struct(kind: StructType) -> tuple[Column, DataType]:
    if not kind.names:
        raise ConfigurationError("there is no column for a key: give it one, as in --key \"'total'\"")
    if len(kind.names) == 1:
        return F.col(f"{STATE_KEY}.`{kind.names[0]}`"), kind.fields[0].dataType
    return F.struct(*(F.col(f"{STATE_KEY}.`{name}`").alias(name) for name in kind.names)), kind


def _has_word(text: str, word: str) -> bool:
    return re.search(_WORD.format(re.escape(word)), text, re.IGNORECASE) is not None


def _struct(frame: DataFrame, name: str) -> StructType:
    kind = frame.schema[name].dataType
    if not isinstance(kind, StructType):
        raise ConfigurationError(f"the state's {name} is {kind.simpleString()}: only columns by name can be served")
    return kind


def _struct_of(columns: Sequence[Column]) -> Column:
    """Return a struct of columns, also of none: Spark has no literal for that."""
    return F.struct(*columns) if columns else F.from_json(F.lit("{}"), StructType([]))


def _renamed(frame: DataFrame, name: str) -> DataFrame:
    """Rename the fields of a struct, at any depth, so that no two of one struct have the same name."""
    kind = _struct(frame, name)
    unique = with_unique_names(kind)
    return frame if unique == kind else frame.withColumn(name, F.col(name).cast(unique))
