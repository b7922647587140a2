"""Struct columns as Avro in the wire format of Confluent's schema registry, written by Spark's own `to_avro`.

The schema follows the column, with a default of null where a field may be null, so that fields may come and go. It
is registered once, when the application starts, under the name that Confluent's serializers use: `<topic>-key` or
`<topic>-value`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import types as T  # noqa: N812 - as everybody writes it

from statehouse.errors import ConfigurationError
from statehouse.serdes import SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[type[T.DataType], object]] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema(struct: T.StructType, *names: str) -> str:
    """Return a struct's Avro schema as JSON; `names` become its namespace and, the last one, its name.

    Raises:
        ConfigurationError: a field has a name or a type that Avro lacks.

    """
    return json.dumps(_record(struct, ".".join(map(_avro_name, names))))


def registered(schema: str, subject: str, registry: SerdeOptions) -> int:
    """Register a schema, if the registry doesn't have it under this subject; return its id. It blocks.

    Raises:
        ConfigurationError: the registry can't be reached, or refuses.

    """
    from statehouse.serdes.registry.client import RegistryClient  # noqa: PLC0415 - few applications need it

    try:
        return RegistryClient(registry, "AVRO").register(subject, schema)
    except (SerdeUnavailable, ValueError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"the Avro schema {subject!r} can't be registered: {error}") from error


def encoded(column: Column, schema: str, schema_id: int) -> Column:
    """Return a struct column as bytes; null stays null.

    Raises:
        ConfigurationError: Spark lacks its package for Avro.

    """
    from pyspark.sql.avro.functions import to_avro  # noqa: PLC0415 - as above

    from statehouse.serdes.registry.wire_format import framed  # noqa: PLC0415 - as above

    try:
        written = to_avro(column, schema)
    except TypeError as error:
        raise ConfigurationError(
            "Spark has no spark-avro here: add its jar to spark.jars, or let statehouse fetch the jars"
        ) from error
    return F.concat(F.lit(bytearray(framed(schema_id, b""))), written)


def _record(struct: T.StructType, name: str) -> dict[str, Any]:
    wrong = [field.name for field in struct.fields if not _NAME.fullmatch(field.name)]
    if wrong:
        raise ConfigurationError(f"Avro has no field named {wrong[0]!r}: names are letters, digits and underscores")
    fields = [_field(field, name) for field in struct.fields]
    namespace, _, own = name.rpartition(".")
    return {"type": "record", "name": own, "namespace": namespace, "fields": fields}


def _field(field: T.StructField, parent: str) -> dict[str, Any]:
    kind = _type(field.dataType, f"{parent}.{field.name}", can_be_null=field.nullable)
    return {"name": field.name, "type": kind} | ({"default": None} if field.nullable else {})


def _type(kind: T.DataType, name: str, *, can_be_null: bool) -> Any:  # noqa: ANN401 - a schema is any JSON
    found: Any
    match kind:
        case T.StructType():
            found = _record(kind, name)
        case T.ArrayType():
            found = {"type": "array", "items": _type(kind.elementType, name, can_be_null=kind.containsNull)}
        case T.MapType(keyType=T.StringType()):
            found = {"type": "map", "values": _type(kind.valueType, name, can_be_null=kind.valueContainsNull)}
        case T.DecimalType():
            found = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case _ if type(kind) in _PLAIN:
            found = _PLAIN[type(kind)]
        case _:
            raise ConfigurationError(f"{name}: Avro has no {kind.simpleString()}: cast it in the frame")
    return ["null", found] if can_be_null else found


def _avro_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{name}" if name[0].isdigit() else name
