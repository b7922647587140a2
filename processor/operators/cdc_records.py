"""Parses the changes of a database, in Debezium's envelope, into a table as `parse_json_table` does.

The envelope has `before`, `after`, and `op` (c create, u update, r read by a snapshot, d delete), alone or as the
`payload` beside a `schema`. After a delete Debezium writes a tombstone, a record without a value, which deletes
too. A table that was truncated (op t) lost rows that no record names, so such a record is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.fields.types import Field, FieldType
from processor.operators.fields.values import at, step
from processor.operators.json_records import DOCUMENT, described, parse_documents, with_document, with_values
from processor.operators.refusals import RefusalCase, require
from processor.operators.registry_records import DECODED, document_of, with_decoded
from processor.rows import DELETED, KEY, REASON, TABLE_KEY, VALUE, DeadLetterReason, quoted
from statehouse.errors import ConfigurationError
from statehouse.serdes.plugins import SerdeOptions

_ENVELOPE: Final = "_envelope"
_ROOT: Final = "_root"
_OP: Final = "_op"
_BEFORE: Final = "_before"
_AFTER: Final = "_after"
_DELETES: Final = "_deletes"
_OLD_KEY: Final = "_old_key"
_WITHDRAWS: Final = "_withdraws"
_KEY_PREFIX: Final = "_key_"
_OLD_PREFIX: Final = "_old_"
_INTERNAL: Final = (_ENVELOPE, _ROOT, _OP, _BEFORE, _AFTER, _DELETES, _OLD_KEY, _WITHDRAWS)
_WRITES: Final = ("c", "u", "r")
_DELETE: Final = "d"
_OP_LENGTH_MAX: Final = 20


def parse_cdc(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    key: Mapping[str, FieldType],
    key_from_row: bool = False,
    optional: Mapping[str, Field] | None = None,
    registry: SerdeOptions | None = None,
) -> DataFrame:
    """Read Debezium's records of a table; add the columns of `parse_json_table`. `fields` are those of `after`.

    `key` names the columns of the record's key, with their types. One column's value, as text, is `table_key`; of
    several it is a JSON object of them, in their order here. With `key_from_row` they are columns of the row instead,
    whatever the record's key is: an update that changes them also deletes the row of the old key, which it finds in
    `before`, and tombstones, which have no row, are left out.

    Keys and values are JSON, or with a `registry` (`app.registry`) Avro.

    Raises:
        ConfigurationError: `key` names no column, or the frame lacks `value`, or `key` where that is read.
        ValueError: the name of a field has a quote or a backslash.

    """
    if not key:
        raise ConfigurationError("parse_cdc: key must name the columns of the table's key: key={'id': FieldType.TEXT}")
    require(frame, VALUE, *(() if key_from_row else (KEY,)))
    refusals: list[RefusalCase] = []
    text, key_text = F.col(VALUE).cast("string"), F.col(KEY).cast("string")
    if registry is not None:
        frame, fault = with_decoded(frame, "avro", registry, VALUE)
        text, refusals = document_of(VALUE), [fault]
        if not key_from_row:
            frame, fault = with_decoded(frame, "avro", registry, KEY)
            key_text, refusals = document_of(KEY), [*refusals, fault]
    read = _with_envelope(frame, text)
    if key_from_row:
        read = read.where(F.col(VALUE).isNotNull()).withColumn(
            DOCUMENT, F.when(F.col(_DELETES), F.col(_BEFORE)).otherwise(F.col(_AFTER))
        )
    else:
        read = with_document(read, key_text).withColumn(DOCUMENT, _payload(F.col(DOCUMENT)))
    keyed = _with_key(read, TABLE_KEY, key, _KEY_PREFIX)
    refusals += _envelope_refusals()
    if not key_from_row:
        refusals.append((F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a table's record needs a key"))
    refusals += _key_refusals(key)
    row = F.when(~F.col(_DELETES), F.to_json(_AFTER))
    parsed = parse_documents(keyed, row, fields, refusals, optional=optional, deleted=F.col(_DELETES))
    parsed = parsed.withColumn(DELETED, F.col(_DELETES))
    if key_from_row:
        parsed = _with_withdrawals(parsed, key, [*fields, *(optional or {})])
    types = [f"_type_{_KEY_PREFIX}{name}" for name in key]
    return parsed.drop(*_INTERNAL, *types, *(_KEY_PREFIX + name for name in key), DECODED + VALUE, DECODED + KEY)


def _with_envelope(frame: DataFrame, text: Column) -> DataFrame:
    """Add the parts of the envelope."""
    read = with_document(frame, text).withColumn(_ENVELOPE, _payload(F.col(DOCUMENT))).drop(DOCUMENT)
    envelope = F.col(_ENVELOPE)
    parts = {
        _ROOT: F.schema_of_variant(envelope),
        _OP: at(envelope, "$.op", "string"),
        _BEFORE: at(envelope, "$.before", "variant"),
        _AFTER: at(envelope, "$.after", "variant"),
    }
    deletes = F.col(VALUE).isNull() | F.coalesce(F.col(_OP) == _DELETE, F.lit(False))
    return read.withColumns(parts).withColumn(_DELETES, deletes)


def _payload(document: Column) -> Column:
    """Return what Kafka Connect's JSON converter wraps in schema and payload, or the document itself."""
    is_wrapped = at(document, "$[0].schema", "variant").isNotNull()
    payload = F.when(is_wrapped, at(document, "$[0].payload", "variant"))
    is_object = F.schema_of_variant(payload).startswith("OBJECT")
    return F.when(is_object, payload).otherwise(at(document, "$[0]", "variant"))


def _with_key(frame: DataFrame, column: str, key: Mapping[str, FieldType], prefix: str) -> DataFrame:
    """Add a key in a column, read from DOCUMENT; null if one of its columns is absent or of another type."""
    typed = with_values(frame, {prefix + name: (f"${step(name)}", kind) for name, kind in key.items()})
    columns = [F.col(quoted(prefix + name)) for name in key]
    if len(columns) == 1:
        text = columns[0].cast("string")
    else:
        named = F.to_json(F.struct(*(each.alias(name) for each, name in zip(columns, key, strict=True))))
        text = F.when(~F.exists(F.array(*(each.isNull() for each in columns)), lambda is_null: is_null), named)
    return typed.withColumn(column, text).drop(DOCUMENT)


def _envelope_refusals() -> list[RefusalCase]:
    op, root, has_value = F.col(_OP), F.col(_ROOT), F.col(VALUE).isNotNull()
    no_row = ~F.coalesce(F.schema_of_variant(_AFTER).startswith("OBJECT"), F.lit(False))
    no_envelope = "field 'op' is missing: the value is no envelope of Debezium's; plain rows are for parse_json_table"
    shown = F.substring(op, 1, _OP_LENGTH_MAX)
    unsupported = F.concat(F.lit("op '"), shown, F.lit("' changes no single row; c, u, r and d do"))
    without_row = F.concat(F.lit("op '"), shown, F.lit("' needs a row in 'after'"))
    wrong_root = described("the value is ", root, ", expected an object")
    return [
        (has_value & F.col(_ENVELOPE).isNull(), DeadLetterReason.NOT_JSON, "the value is not a JSON document"),
        (has_value & ~root.startswith("OBJECT"), DeadLetterReason.WRONG_TYPE, wrong_root),
        (has_value & op.isNull(), DeadLetterReason.MISSING_FIELD, no_envelope),
        (has_value & ~op.isin(*_WRITES, _DELETE), DeadLetterReason.UNSUPPORTED_OPERATION, unsupported),
        (~F.col(_DELETES) & no_row, DeadLetterReason.MISSING_FIELD, without_row),
    ]


def _key_refusals(key: Mapping[str, FieldType]) -> list[RefusalCase]:
    refusals: list[RefusalCase] = []
    for name, kind in key.items():
        value, found = F.col(quoted(_KEY_PREFIX + name)), F.col(quoted(f"_type_{_KEY_PREFIX}{name}"))
        missing = f"the key's field {name!r} is missing"
        wrong = described(f"the key's field {name!r} is ", found, f", expected {kind.words}")
        refusals += [
            (found.isNull(), DeadLetterReason.MISSING_FIELD, missing),
            (value.isNull(), DeadLetterReason.WRONG_TYPE, wrong),
        ]
    return refusals


def _with_withdrawals(parsed: DataFrame, key: Mapping[str, FieldType], columns: list[str]) -> DataFrame:
    """Add, to each update whose old row has another key, a row that deletes the old key."""
    old = _with_key(parsed.withColumn(DOCUMENT, F.col(_BEFORE)), _OLD_KEY, key, _OLD_PREFIX)
    is_moved = F.col(REASON).isNull() & ~F.col(_DELETES) & (F.col(_OLD_KEY) != F.col(TABLE_KEY))
    kinds = F.when(is_moved, F.array(F.lit(True), F.lit(False))).otherwise(F.array(F.lit(False)))
    both = old.withColumn(_WITHDRAWS, F.explode(kinds))
    withdraws = F.col(_WITHDRAWS)
    both = both.withColumns(
        {
            TABLE_KEY: F.when(withdraws, F.col(_OLD_KEY)).otherwise(F.col(TABLE_KEY)),
            DELETED: withdraws | F.col(DELETED),
            **{name: F.when(~withdraws, F.col(quoted(name))) for name in columns},
        }
    )
    return both.drop(*(f"_type_{_OLD_PREFIX}{name}" for name in key), *(_OLD_PREFIX + name for name in key))
