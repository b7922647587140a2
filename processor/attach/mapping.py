"""Makes entries of a store from rows of Spark's state: keys and values, serialized.

State has the operator's internal names: `count`, `max`, `_groupingexpression`. A name that comes twice gets a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from processor.rows import KEY, VALUE
from statehouse.errors import ConfigurationError
from statehouse.serdes import SERDES

STATE_KEY: Final = "_state_key"
STATE_VALUE: Final = "_state_value"
_INTEGRAL: Final = (ByteType, ShortType, IntegerType, LongType)
_FRACTIONAL: Final = (FloatType, DoubleType)
_NESTED: Final = (StructType, ArrayType, MapType)
# Spark wraps a user's own state in a struct of this name.
_WRAPPED: Final = ("groupState", "value")
_LIST: Final = "list"
# Until the end other names than KEY and VALUE, which the state's own columns may have.
_KEY: Final = "_store_key"
_VALUE: Final = "_store_value"


@dataclass(frozen=True, slots=True)
class EntryMapping:
    """How a row of the state becomes an entry.

    Attributes:
        key: an SQL expression over the key's columns; default: the key's only column, or all as a JSON object.
        values: name -> SQL expression over the columns of value and key; default: the value's columns by their names.
        key_serde: default: by the type of the key.
        value_serde: `json` makes an object of `values`; any other takes the only one.

    """

    key: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    key_serde: str | None = None
    value_serde: str = "json"

    def __post_init__(self) -> None:
        """Check what can be checked without the state."""
        for what, name in (("key", self.key_serde), ("value", self.value_serde)):
            if name is not None and name not in SERDES:
                raise ConfigurationError(f"{what} serde {name!r} can't be written here: one of {', '.join(SERDES)}")
        if self.value_serde != "json" and len(self.values) != 1:
            raise ConfigurationError(
                f"value serde {self.value_serde!r} takes one value: name it, as in --value total=count"
            )


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names, those that come again with a number: count, count_2."""
    made: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in made:
            number += 1
            unique = f"{name}_{number}"
        made.append(unique)
    return made


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
    # An operator that only remembers keys has no value; Spark has no empty structs with a literal.
    made = F.struct(*columns) if columns else F.from_json(F.lit("{}"), StructType([]))
    return frame.withColumnsRenamed({"key": STATE_KEY}).withColumn(STATE_VALUE, made).drop("value")


def entries(rows: DataFrame, columns: EntryMapping, keep: Sequence[str] = ()) -> DataFrame:
    """Return key and value of each row as bytes, beside STATE_KEY and the columns in `keep`.

    Raises:
        ConfigurationError: an expression doesn't fit the columns; the text says which there are.

    """
    key_type, value_type = _struct(rows, STATE_KEY), _struct(rows, STATE_VALUE)
    try:
        keyed = rows.select(*keep, STATE_KEY, STATE_VALUE, f"{STATE_KEY}.*").withColumn(_KEY, _key(key_type, columns))
        names = [name for name in key_type.names if name not in value_type.names]
        of_key = [F.col(f"{STATE_KEY}.`{name}`") for name in names]
        whole = keyed.select(*keep, STATE_KEY, _KEY, *of_key, STATE_VALUE, f"{STATE_VALUE}.*")
        made = {name: F.expr(text) for name, text in columns.values.items()}
        if not made:
            value: Column = F.to_json(F.col(STATE_VALUE), {"ignoreNullFields": "false"})
        elif columns.value_serde == "json":
            named = [column.alias(name) for name, column in made.items()]
            value = F.to_json(F.struct(*named), {"ignoreNullFields": "false"})
        else:
            (sole,) = made.values()
            value = encoded(whole.select(sole.alias(VALUE)).schema[VALUE].dataType, sole, columns.value_serde)
        encodes_key = encoded(keyed.schema[_KEY].dataType, F.col(_KEY), key_serde(rows, columns))
        out = whole.select(*keep, STATE_KEY, encodes_key.alias(_KEY), value.cast("binary").alias(_VALUE))
        return out.withColumnsRenamed({_KEY: KEY, _VALUE: VALUE})
    except AnalysisException as error:
        raise ConfigurationError(
            f"the key or a value can't be made: {str(error).splitlines()[0]}. The key has the columns "
            f"{', '.join(key_type.names) or 'none'}, the value {', '.join(value_type.names) or 'none'}"
        ) from error


def key_serde(rows: DataFrame, columns: EntryMapping) -> str:
    """Return the serde of the store's keys: the one that was named, else the one that fits the type of the key."""
    if columns.key_serde is not None:
        return columns.key_serde
    key_type = _struct(rows, STATE_KEY)
    kind = rows.select(f"{STATE_KEY}.*").select(_key(key_type, columns).alias(KEY)).schema[KEY].dataType
    if isinstance(kind, _INTEGRAL):
        return "long"
    if isinstance(kind, _FRACTIONAL):
        return "double"
    if isinstance(kind, BinaryType):
        return "bytes"
    return "json" if isinstance(kind, _NESTED) else "string"


def encoded(kind: DataType, column: Column, serde: str) -> Column:
    """Return a column's bytes as a serde writes them."""
    if serde == "string":
        return column.cast("string").cast("binary")
    if serde == "bytes":
        return column.cast("binary")
    if serde == "long":
        return F.unhex(F.lpad(F.hex(column.cast("bigint")), 16, "0"))
    if serde == "double":
        return F.arrow_udf(double_bytes, "binary")(column.cast("double"))
    if isinstance(kind, _NESTED):
        return F.to_json(column, {"ignoreNullFields": "false"}).cast("binary")
    # Spark makes JSON of objects only: {"v":...}
    text = F.to_json(F.struct(column.alias("v")), {"ignoreNullFields": "false"})
    inner = F.substring(text, F.lit(6), F.length(text) - 6)
    return F.when(column.isNotNull(), inner).cast("binary")


def double_bytes(numbers: pa.Array) -> pa.Array:
    """Return the eight bytes of each number, big-endian."""
    data = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=">f8").tobytes()
    valid = numbers.is_valid().to_pylist()
    made = [data[8 * place : 8 * place + 8] if is_valid else None for place, is_valid in enumerate(valid)]
    return pa.array(made, pa.binary())


def _key(kind: StructType, columns: EntryMapping) -> Column:
    if columns.key is not None:
        return F.expr(columns.key)
    if not kind.names:
        raise ConfigurationError("the state has one row without a key: give it one, as in --key \"'total'\"")
    if len(kind.names) == 1:
        return F.col(f"`{kind.names[0]}`")
    return F.struct(*(F.col(f"`{name}`") for name in kind.names))


def _struct(frame: DataFrame, name: str) -> StructType:
    kind = frame.schema[name].dataType
    if not isinstance(kind, StructType):
        raise ConfigurationError(f"the state's {name} is {kind.simpleString()}: only columns by name can be served")
    return kind


def _renamed(frame: DataFrame, name: str) -> DataFrame:
    """Rename the fields of a struct so that no two have the same name."""
    kind = _struct(frame, name)
    names = unique_names(kind.names)
    if names == kind.names:
        return frame
    fields = [StructField(new, each.dataType) for new, each in zip(names, kind.fields, strict=True)]
    return frame.withColumn(name, F.col(name).cast(StructType(fields)))
