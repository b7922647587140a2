"""The timestamps of changelog records, kept with the values that the records brought (KIP-258).

What an engine holds for a key begins with the record's timestamp, 8 bytes big-endian; the value's bytes follow. This
form is only ours: keys and values in the changelog are as their writer made them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from query_service.stores.base import ChangelogRecord

NO_TIMESTAMP = -1
"""In place of a timestamp: the store keeps none, or the record had none. Kafka's own number for it."""

Timestamped = tuple[bytes, int]
"""A value and the timestamp of its record, in milliseconds since 1970, or `NO_TIMESTAMP`."""

_TIME = struct.Struct(">q")
_pack, _unpack, _size = _TIME.pack, _TIME.unpack_from, _TIME.size


def timestamped_entries(records: Iterable[ChangelogRecord]) -> list[tuple[bytes, bytes | None]]:
    """Return each record's key and what an engine holds for it; None for a tombstone."""
    return [(key, None if value is None else _pack(timestamp_ms) + value) for key, value, timestamp_ms, *_ in records]


def timestamped(value: bytes | None, timestamp_ms: int) -> bytes | None:
    """Return what an engine holds for a value; None for a tombstone."""
    return None if value is None else _pack(timestamp_ms) + value


def split(data: bytes) -> Timestamped:
    """Return the value and the timestamp in what an engine holds."""
    return data[_size:], _unpack(data)[0]


def value_of(data: bytes) -> bytes:
    """Return the value in what an engine holds."""
    return data[_size:]


def shown_timestamp(timestamp_ms: int) -> int | None:
    """Return a timestamp as answers have it: absent if there is none. No record has a negative one."""
    return None if timestamp_ms < 0 else timestamp_ms
