"""Batches on the wire: split and joined without parsing their entries.

On the wire a message in a field looks like bytes, and a message's serialized fields may come in any order (Protocol
Buffers, "Encoding"). So a batch can be joined from serialized answers, and an answer from serialized parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2

_RESPONSE: Final = b"\x0a"  # tag of field 1 of BatchGetResult, a response


def frames(data: bytes) -> Sequence[bytes]:
    """Return the elements of a message whose field 1 is repeated messages; other fields are skipped.

    Raises:
        DecodeError: the bytes are not a message.

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
    """Return a field of a message from its content, bytes or a serialized message.

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


# Most fields are short, and encoding a length each time would take longer than all the rest.
_SHORT: Final = 1 << 11
_LENGTHS: Final = tuple(map(_varint, range(_SHORT)))
