"""Order-preserving encoding of a key followed by more: keys of any length sort before what follows them.

Zero bytes are escaped and a terminator is added, the form ordered key-value layers use for tuples: with it, all
entries of one key are neighbours, whatever bytes other keys hold. Used inside stores only; changelogs keep Kafka
Streams' layouts.
"""

from __future__ import annotations

_END = b"\0\1"
_ZERO = b"\0\xff"


def escaped(key: bytes) -> bytes:
    """Return the key so encoded; the order of encoded keys is the order of keys, none is another's prefix."""
    return escaped_prefix(key) + _END


def escaped_prefix(prefix: bytes) -> bytes:
    """Return what the encoded forms of all keys with this prefix, and only those, begin with."""
    return prefix.replace(b"\0", _ZERO)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the key and what follows it.

    Raises:
        ValueError: no terminator is in the data.

    """
    end = data.find(_END)
    if end < 0:
        raise ValueError("an encoded key without its end")
    return data[:end].replace(_ZERO, b"\0"), data[end + len(_END) :]
