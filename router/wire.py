"""Protobuf's wire form of a message with one repeated field.

Batches are taken apart and put together with it, without parsing the values in them.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

# Field 1 and field 2, length-delimited.
FIELD_1 = 0x0A
FIELD_2 = 0x12


def frames(data: bytes) -> list[bytes]:
    """Return the elements of a message that has only field 1, repeated messages; other fields are skipped.

    Raises:
        DecodeError: the bytes are no such message.

    """
    found = []
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        if tag & 7 != 2:
            raise DecodeError(f"unexpected wire type {tag & 7}")
        length, at = _varint(data, at)
        if at + length > end:
            raise DecodeError("truncated message")
        if tag == FIELD_1:
            found.append(data[at : at + length])
        at += length
    return found


def framed(elements: Iterable[bytes]) -> bytes:
    """Return the message whose repeated field 1 has these elements."""
    parts: list[bytes] = []
    for element in elements:
        parts += (b"\x0a", varint(len(element)), element)
    return b"".join(parts)


def varint(number: int) -> bytes:
    """Return an unsigned number in base 128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DecodeError("truncated number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
