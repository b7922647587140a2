"""Composite keys of window and session stores, in Kafka Streams' own layouts.

A window record's key is `key | window start (8 bytes) | sequence (4 bytes)`, a session's `key | end (8) | start (8)`,
integers big-endian (`WindowKeySchema` and `SessionKeySchema` of Kafka Streams). With the same layouts the changelog
of a Kafka Streams application can be served unchanged. Times are epoch milliseconds and never negative, so byte order
is time order. Kafka Streams' sequences are never negative either; read as unsigned integers, they sort in byte order,
whatever the four bytes are.

Stores and page tokens use another form, the entry key: the escaped key (`statehouse.keys.ordered`), then the times that
order a key's entries. Entry keys sort by key, then start, then sequence or end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from statehouse.errors import ContractError
from statehouse.keys import ordered as ordered_keys

_WINDOW_SUFFIX = struct.Struct(">qI")
_SESSION_SUFFIX = struct.Struct(">qq")
WINDOW_SUFFIX_BYTES: Final = _WINDOW_SUFFIX.size
"""Bytes that a window record's key has after the plain key …"""
SESSION_SUFFIX_BYTES: Final = _SESSION_SUFFIX.size
"""… and a session record's."""


@dataclass(frozen=True, slots=True, order=True)
class WindowKey:
    """A key and the start of one of its windows; `sequence` tells duplicates of a `retain_duplicates` store apart."""

    key: bytes
    start_ms: int
    sequence: int = 0

    def to_bytes(self) -> bytes:
        """Return the composite key."""
        return self.key + _WINDOW_SUFFIX.pack(self.start_ms, self.sequence)

    @classmethod
    def from_bytes(cls, data: bytes) -> WindowKey:
        """Read a composite key.

        Raises:
            ContractError: it is too short, or its start is negative.

        """
        if len(data) < _WINDOW_SUFFIX.size:
            raise ContractError(
                f"a window record's key has {len(data)} bytes, at least {_WINDOW_SUFFIX.size} are needed"
            )
        start_ms, sequence = _WINDOW_SUFFIX.unpack_from(data, len(data) - _WINDOW_SUFFIX.size)
        if start_ms < 0:
            raise ContractError(f"a window that starts at {start_ms} ms")
        return cls(data[: -_WINDOW_SUFFIX.size], start_ms, sequence)

    def to_entry_key(self) -> bytes:
        """Return the entry key."""
        return ordered_keys.escaped(self.key) + _WINDOW_SUFFIX.pack(self.start_ms, self.sequence)

    @classmethod
    def from_entry_key(cls, data: bytes) -> WindowKey:
        """Read an entry key that a store holds."""
        key, suffix = ordered_keys.split(data)
        return cls(key, *_WINDOW_SUFFIX.unpack(suffix))


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """A key and the bounds of one of its sessions, both inclusive."""

    key: bytes
    start_ms: int
    end_ms: int

    def to_bytes(self) -> bytes:
        """Return the composite key."""
        return self.key + _SESSION_SUFFIX.pack(self.end_ms, self.start_ms)

    @classmethod
    def from_bytes(cls, data: bytes) -> SessionKey:
        """Read a composite key.

        Raises:
            ContractError: it is too short, or its bounds are negative or the wrong way round.

        """
        if len(data) < _SESSION_SUFFIX.size:
            raise ContractError(
                f"a session record's key has {len(data)} bytes, at least {_SESSION_SUFFIX.size} are needed"
            )
        end_ms, start_ms = _SESSION_SUFFIX.unpack_from(data, len(data) - _SESSION_SUFFIX.size)
        if not 0 <= start_ms <= end_ms:
            raise ContractError(f"a session from {start_ms} to {end_ms} ms")
        return cls(data[: -_SESSION_SUFFIX.size], start_ms, end_ms)

    def to_entry_key(self) -> bytes:
        """Return the entry key."""
        return ordered_keys.escaped(self.key) + _SESSION_SUFFIX.pack(self.start_ms, self.end_ms)

    @classmethod
    def from_entry_key(cls, data: bytes) -> SessionKey:
        """Read an entry key that a store holds."""
        key, suffix = ordered_keys.split(data)
        return cls(key, *_SESSION_SUFFIX.unpack(suffix))
