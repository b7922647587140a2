"""Answers to lookups, made as the bytes they are on the wire.

A batch's answers of one partition have the same stamp, which is written once; and no message is made for each.
"""

from __future__ import annotations

from query_service.values import serialized_value
from query_service.view import ServedStore
from statehouse.v1 import types_pb2
from statehouse.wire import delimited

# Of GetResponse: found, said in either case; value; replica.
_FOUND = b"\x08\x01"
_NOT_FOUND = b"\x08\x00"
_VALUE = b"\x12"
_REPLICA = b"\x1a"


def stamped(stamp: types_pb2.ReplicaStamp) -> bytes:
    """Return the part of a GetResponse that says who answers."""
    return delimited(_REPLICA, stamp.SerializeToString())


def answer(served: ServedStore, data: bytes | None, *, raw: bool, stamp: bytes) -> bytes:
    """Return a serialized GetResponse about what the store has of a key; `stamp` as `stamped` returns it.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    if data is None:
        return _NOT_FOUND + stamp
    return _FOUND + delimited(_VALUE, serialized_value(served, data, raw=raw)) + stamp
