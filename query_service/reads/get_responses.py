"""Writes answers to lookups directly as the bytes of the wire format.

The answers of a batch from one partition have the same stamp, so it is serialized once. No message object is made per
answer.
"""

from __future__ import annotations

from query_service.reads.decoded_values import serialized_value
from query_service.reads.fleet_view import ServedStore
from statehouse.v1 import types_pb2
from statehouse.wire import delimited

# Fields of GetResponse: found (always written), value, replica.
_FOUND = b"\x08\x01"
_NOT_FOUND = b"\x08\x00"
_VALUE = b"\x12"
_REPLICA = b"\x1a"


def stamped(stamp: types_pb2.ReplicaStamp) -> bytes:
    """Return the field `replica` of a GetResponse, serialized."""
    return delimited(_REPLICA, stamp.SerializeToString())


def answer(served: ServedStore, data: bytes | None, *, raw: bool, stamp: bytes) -> bytes:
    """Return a serialized GetResponse.

    Args:
        served: the store.
        data: the stored value, None if the store does not hold the key.
        raw: whether the caller wants the value undecoded.
        stamp: the result of `stamped`.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    if data is None:
        return _NOT_FOUND + stamp
    return _FOUND + delimited(_VALUE, serialized_value(served, data, raw=raw)) + stamp
