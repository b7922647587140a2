"""Writes answers to lookups directly as the bytes of the wire format.

The answers of a batch from one partition have the same stamp, so it is serialized once. No message object is made per
answer.
"""

from __future__ import annotations

from query_service.reads.decoded_values import serialized_value
from query_service.reads.fleet_view import ServedStore
from query_service.stores.timestamps import Timestamped
from statehouse.serdes.wire import delimited
from statehouse.v1 import query_service_pb2, types_pb2

# Fields of GetResponse: found (always written), value, replica.
_FOUND = b"\x08\x01"
_NOT_FOUND = b"\x08\x00"
_VALUE = b"\x12"
_REPLICA = b"\x1a"
# Found, with a timestamp. A varint takes Python long, and a new message or a bound method for each answer takes longer.
# So there is one of each, and answers are written in one thread only, that of the event loop.
_TIMED = query_service_pb2.GetResponse(found=True)
_serialized_timed = _TIMED.SerializeToString


def stamped(stamp: types_pb2.ReplicaStamp) -> bytes:
    """Return the field `replica` of a GetResponse, serialized."""
    return delimited(_REPLICA, stamp.SerializeToString())


def answer(served: ServedStore, found: Timestamped | None, *, raw: bool, stamp: bytes) -> bytes:
    """Return a serialized GetResponse.

    Args:
        served: the store.
        found: the stored value and its record's timestamp, None if the store does not hold the key.
        raw: whether the caller wants the value undecoded.
        stamp: the result of `stamped`.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    if found is None:
        return _NOT_FOUND + stamp
    data, timestamp_ms = found
    if timestamp_ms < 0:
        head = _FOUND
    else:
        _TIMED.timestamp_ms = timestamp_ms
        head = _serialized_timed()
    return head + delimited(_VALUE, serialized_value(served, data, raw=raw)) + stamp
