"""Batches on the wire: taken apart and put together without what is in them being parsed.

A message in a field stands on the wire as bytes do, and the serialized fields of a message may follow each other in any
order (Protocol Buffers, "Encoding"): so a batch can be made of answers that are serialized already, and an answer of
parts that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2

_RESPONSE: Final = b"\x0a"  # of BatchGetResult


def frames(data: bytes) -> Sequence[bytes]:
    """Return the elements of a message that has only field 1, repeated messages; other fields are skipped.

    Raises:
        DecodeError: the bytes are no message.

    """
    return frames_pb2.Frames.FromString(data).elements


def framed(elements: Iterable[bytes]) -> bytes:
    """Return the message whose repeated field 1 has these elements."""
    return frames_pb2.Frames(elements=elements).SerializeToString()


def result_of(outcome: bytes | LookupFailure) -> bytes:
    """Return the serialized BatchGetResult of a serialized GetResponse, or of a failure."""
    if isinstance(outcome, bytes):
        return delimited(_RESPONSE, outcome)
    return query_service_pb2.BatchGetResult(error=outcome.to_proto()).SerializeToString()


def delimited(tag: bytes, content: bytes) -> bytes:
    """Return a field of a message whose content, bytes or a message, is serialized already.

    `tag`: its number and wire type in one byte.
    """
    size = len(content)
    if size < _SHORT:
        return tag + _LENGTHS[size] + content
    return tag + _varint(size) + content


def _varint(number: int) -> bytes:
    """Return an unsigned number in base 128, least significant digits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Most fields are short, and to make a length anew takes longer than all the rest.
_SHORT: Final = 1 << 11
_LENGTHS: Final = tuple(map(_varint, range(_SHORT)))
