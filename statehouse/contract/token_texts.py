"""Tokens as bytes and as text: a message, compressed, in the alphabet of URLs. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

M = TypeVar("M", bound=Message)


def packed(message: Message) -> bytes:
    """Return a message in a compact form."""
    return zlib.compress(message.SerializeToString(), 9)


def unpacked(data: bytes, kind: type[M], most: int, what: str) -> M:
    """Read what `packed` wrote, of `most` bytes at most; `what` names it in errors.

    Raises:
        ValueError: it is none, or too long.

    """
    unpacker = zlib.decompressobj()
    try:
        message = kind.FromString(unpacker.decompress(data, most))
    except (zlib.error, DecodeError) as error:
        raise ValueError(f"not a {what}: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"not a {what}: it is cut off, or too long")
    return message


def text_of(data: bytes) -> str:
    """Return bytes as text for a header, a cookie or a URL."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def data_in(text: str, what: str) -> bytes:
    """Read what `text_of` wrote; `what` names it in errors.

    Raises:
        ValueError: it is none.

    """
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not a {what}: {error}") from error
