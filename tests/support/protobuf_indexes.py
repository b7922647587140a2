"""The path to a message within its schema, as Confluent's serializers write it."""

from __future__ import annotations

from collections.abc import Sequence


def with_indexes(indexes: Sequence[int], payload: bytes) -> bytes:
    """Return a Protobuf payload with the path to its message: zigzag numbers, their count first; [0] is one zero."""
    if list(indexes) == [0]:
        return b"\0" + payload
    return b"".join(map(_varint, (len(indexes), *indexes))) + payload


def _varint(number: int) -> bytes:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])
