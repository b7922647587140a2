"""Decodes the value of a single lookup with the store's serde, or returns it raw."""

from __future__ import annotations

from query_service.reads.fleet_view import ServedStore
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import types_pb2

_RAW = SERDES["bytes"]


def decoded_value(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
    """Return a value decoded with the store's value serde, or raw.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    try:
        return (_RAW if raw else served.value_serde).value(data)
    except ValueError as error:
        raise LookupFailure(
            Reason.VALUE_UNDECODABLE,
            f"the stored value is no {served.spec.value_serde}: {error}; read it with raw=true",
            {"store": served.spec.name},
        ) from error
