"""The value of a single lookup, by the store's serde or raw."""

from __future__ import annotations

from query_service.view import ServedStore
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2


def decoded_value(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
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
