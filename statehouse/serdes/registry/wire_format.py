"""Confluent's wire format: a magic byte, the id of the writer's schema, and for Protobuf the path to the message."""

from __future__ import annotations

import struct

_PREFIX = struct.Struct(">bI")
_MAGIC = 0
# A message is nested as deep as its schema; far more than this is no schema but a wrong byte.
_INDEXES_MAX = 100
_VARINT_BYTES_MAX = 5


def framed(schema_id: int, payload: bytes) -> bytes:
    """Return a payload with its prefix."""
    return _PREFIX.pack(_MAGIC, schema_id) + payload


def unframed(data: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the payload.

    Raises:
        ValueError: the prefix is missing.

    """
    if len(data) < _PREFIX.size or data[0] != _MAGIC:
        raise ValueError(
            "it does not begin with a zero byte and the id of a schema, as a registry's serializers write "
            f"({_start(data)})"
        )
    return _PREFIX.unpack_from(data)[1], data[_PREFIX.size :]


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the path to the message within its schema, and the payload.

    Raises:
        ValueError: the path is damaged.

    """
    count, at = _read_varint(data, 0)
    if count == 0:
        return (0,), data[at:]
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"the path to its message has {count} steps")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        if index < 0:
            raise ValueError("the path to its message has a negative step")
        indexes.append(index)
    return tuple(indexes), data[at:]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_VARINT_BYTES_MAX):
        if at + place >= len(data):
            raise ValueError("it ends within the path to its message")
        byte = data[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise ValueError("the path to its message is damaged")


def _start(data: bytes) -> str:
    return f"{len(data)} bytes, from {data[:5].hex() or 'nothing'} on"
