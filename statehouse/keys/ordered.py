"""Order-preserving encoding of a key that further bytes follow: entries sort by the key first, then by these bytes.

Zero bytes are escaped and a terminator is added, as ordered key-value stores encode tuples. So all entries of one key
are neighbours, whatever bytes other keys have. Used inside stores only; changelogs keep Kafka Streams' layouts.
"""

from __future__ import annotations

_END = b"\0\1"
_ZERO = b"\0\xff"


def escaped(key: bytes) -> bytes:
    """Return the encoded key. Encoded keys sort like keys, and none is a prefix of another."""
    return escaped_prefix(key) + _END


def escaped_prefix(prefix: bytes) -> bytes:
    """Return the common beginning of the encoded keys with this prefix; no other encoded key begins so."""
    return prefix.replace(b"\0", _ZERO)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the key and the bytes that follow it.

    Raises:
        ValueError: no terminator is in the data.

    """
    end = data.find(_END)
    if end < 0:
        raise ValueError("an encoded key without its terminator")
    return data[:end].replace(_ZERO, b"\0"), data[end + len(_END) :]
