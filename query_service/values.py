"""Keys and values as answers show them: by the store's serdes, or raw."""

from __future__ import annotations

from query_service.view import ServedStore
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2


def shown_key(served: ServedStore, key: bytes) -> types_pb2.Key:
    """Return a key as text by the store's key serde, raw if it does not decode."""
    try:
        return types_pb2.Key(text=served.key_serde.text(key))
    except ValueError:
        return types_pb2.Key(raw=key)


def shown_value(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
    """Return a value by the store's value serde, or raw.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    if raw:
        return types_pb2.Value(raw=data)
    try:
        return served.value_serde.value(data)
    except ValueError as error:
        raise LookupFailure(
            Reason.VALUE_UNDECODABLE,
            f"the stored value is no {served.spec.value_serde}: {error}; read it with raw=true",
            {"store": served.spec.name},
        ) from error


def value_or_raw(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
    """Return a scan's value: one that does not decode is shown raw, it must not fail its neighbours."""
    try:
        return shown_value(served, data, raw=raw)
    except LookupFailure:
        return types_pb2.Value(raw=data)
