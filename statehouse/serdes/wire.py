"""Batches on the wire: split and joined without parsing their entries.

On the wire a message in a field looks like bytes, and a message's serialized fields may come in any order (Protocol
Buffers, "Encoding"). So a batch can be joined from serialized answers, and an answer from serialized parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2

LOOKUP_BYTES_MAX: Final = 1024 * 1024
"""For serialized lookups: a key is a part of a record of Kafka. No other request but a batch may be longer either."""
_ELEMENT: Final = 0x0A  # tag of field 1, a message
_DELIMITED: Final = 2
_NUMBER: Final = 0
_FIXED: Final = {1: 8, 5: 4}
_DIGITS_MAX: Final = 10
# A batch has no fields but its lookups; a newer version's may have a few. With more it is left to the parser.
_OTHER_FIELDS_MAX: Final = 100
# More than lookups have; to parse fewer bytes takes no time that anybody notices.
_BYTES_EACH: Final = 64
_RESPONSE: Final = b"\x0a"  # tag of field 1 of BatchGetResult, a response


def frames(data: bytes) -> Sequence[bytes]:
    """Return the elements of a message whose field 1 is repeated messages; other fields are skipped.

    Raises:
        DecodeError: the bytes are not a message.

    """
    return frames_pb2.Frames.FromString(data).elements


def lookups_of(data: bytes, most: int) -> Sequence[bytes]:
    """Return the serialized lookups of a batch that has at most `most`.

    Raises:
        DecodeError: the bytes are not a batch.
        LookupFailure: INVALID_REQUEST, there are more.

    """
    refuse_too_much(data, most)
    found = frames(data)
    refuse_too_many(len(found), most)
    return found


def refuse_too_much(data: bytes, most: int) -> None:
    """Refuse a batch with far more than `most` lookups, or with one that is too long, before it is parsed.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if len(data) > _BYTES_EACH * most:
        refuse_beginning(data, most)


def refuse_beginning(data: bytes, most: int) -> None:
    """Refuse a batch if `data`, its beginning or all of it, already has too many lookups, or one that is too long.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if is_too_much(data, most):
        raise _too_many(f"more than {most}, or too long,", most)


def refuse_too_many(count: int, most: int) -> None:
    """Refuse so many lookups in a batch if more than `most`.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if count > most:
        raise _too_many(str(count), most)


def _too_many(count: str, most: int) -> LookupFailure:
    message = f"{count} lookups in a batch, at most {most} are taken: split it"
    return LookupFailure(Reason.INVALID_REQUEST, message, {"max_batch_entries": str(most)})


def is_too_much(data: bytes, most: int) -> bool:
    """Return whether a batch has more than `most` lookups, or one of over `LOOKUP_BYTES_MAX`, without parsing it.

    `data`: it, or its beginning. To make half a million of elements only to count them takes a tenth of a second, and
    so does one of 16 MiB. One that is not well formed is left to `frames`: False.
    """
    at = count = 0
    try:
        for _field in range(most + 1 + _OTHER_FIELDS_MAX):
            if count > most or at >= len(data):
                break
            tag, at = _number(data, at)
            kind = tag & 0x7
            count += tag == _ELEMENT
            if kind == _DELIMITED:
                size, at = _number(data, at)
                if size > LOOKUP_BYTES_MAX:
                    return True
                at += size
            elif kind == _NUMBER:
                _, at = _number(data, at)
            else:
                at += _FIXED[kind]
    except (IndexError, KeyError, ValueError):
        return False
    return count > most


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number in base 128 that begins there, and where it ends.

    Raises:
        IndexError: it does not end.
        ValueError: it is longer than any; to read megabytes of digits would take for ever.

    """
    number = 0
    for shift in range(0, 7 * _DIGITS_MAX, 7):
        digit = data[at]
        at += 1
        number |= (digit & 0x7F) << shift
        if digit <= 0x7F:
            return number, at
    raise ValueError(at)


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
    return tag + varint(size) + content


def varint(number: int) -> bytes:
    """Return an unsigned number in base 128, least significant digits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Most fields are short, and encoding a length each time would take longer than all the rest.
_SHORT: Final = 1 << 11
_LENGTHS: Final = tuple(map(varint, range(_SHORT)))
