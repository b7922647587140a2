"""The keys that a scan reads, by its request: the same at nodes, routers and clients. Pure.

Keys are in unsigned byte order of their serialized form. Numbers that are given as text, or as numbers, are compared as
numbers all the same: bytes have those below zero behind the others. A range of them then has gaps, and its entries
still come in the order of bytes. Raw keys are compared as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from statehouse.contract.key_ranges import Comparison, Operator, key_value, ranges_of
from statehouse.contract.paging import (
    KeyRange,
    RangeRequest,
    TimedRangeRequest,
    after_page,
    after_prefix,
    escaped_range,
    serialized_key,
)
from statehouse.errors import SHOWN_MAX, LookupFailure, Reason, shown
from statehouse.serdes import DoubleSerde, LongSerde, Serde
from statehouse.v1 import query_service_pb2, types_pb2

_NUMBERS: Final[Mapping[type, str]] = MappingProxyType({LongSerde: "long", DoubleSerde: "double"})


def key_range(request: query_service_pb2.ScanRequest, serde: Serde) -> KeyRange:
    """Return the range left to read: the request's range, without the keys that its page token says were returned.

    Raises:
        LookupFailure: INVALID_KEY, INVALID_REQUEST (prefix and a range, or no key can be in it) or
            INVALID_PAGE_TOKEN.

    """
    return after_page(_requested(request, serde), request)


def entry_key_range(request: TimedRangeRequest, serde: Serde) -> KeyRange:
    """Return the range of entry keys left to read: all entries of the request's keys, without those returned.

    Raises:
        LookupFailure: as `key_range`.

    """
    return after_page(escaped_range(_requested(request, serde)), request)


def range_between(first: types_pb2.Key | None, last: types_pb2.Key | None, serde: Serde) -> KeyRange:
    """Return the keys from the first to the last, both inclusive; None is no bound.

    Raises:
        LookupFailure: INVALID_KEY; or INVALID_REQUEST, no key can be between them.

    """
    start = b"" if first is None else serialized_key(first, serde)
    end = None if last is None else serialized_key(last, serde)
    numbers = _NUMBERS.get(type(serde))
    if numbers is not None and all(each.WhichOneof("key") == "text" for each in (first, last) if each is not None):
        found = _between_numbers(numbers, first, last)
        if found is not None:
            return found
        if end is None or start <= end:  # a range in the order of bytes, as from 2 to -2, and no number is in it
            return KeyRange(start, start)
    if end is not None and start > end:
        raise LookupFailure(
            Reason.INVALID_REQUEST,
            f"no key can be from {_shown(first)} to {_shown(last)}: in the order of their bytes the first is after the "
            "last; exchange them (reverse turns only the order of the answer)",
        )
    return KeyRange(start, None if end is None else end + b"\0")


def serialized_prefix(prefix: types_pb2.Key, serde: Serde) -> bytes:
    """Return the bytes that keys begin with.

    Raises:
        LookupFailure: INVALID_KEY; or INVALID_REQUEST, it is a number.

    """
    if type(serde) in _NUMBERS and prefix.WhichOneof("key") == "text":
        raise LookupFailure(
            Reason.INVALID_REQUEST, "numbers have no prefix: ask for a range, or give the first bytes as a raw key"
        )
    return serialized_key(prefix, serde)


def _requested(request: RangeRequest, serde: Serde) -> KeyRange:
    if not request.HasField("prefix"):
        first = request.from_key if request.HasField("from_key") else None
        keys = range_between(first, request.to_key if request.HasField("to_key") else None, serde)
        return KeyRange(keys.start, keys.stop, request.reverse, keys.gaps)
    if request.HasField("from_key") or request.HasField("to_key"):
        raise LookupFailure(Reason.INVALID_REQUEST, "prefix excludes from_key and to_key")
    start = serialized_prefix(request.prefix, serde)
    return KeyRange(start, after_prefix(start), request.reverse)


def _between_numbers(serde: str, first: types_pb2.Key | None, last: types_pb2.Key | None) -> KeyRange | None:
    """Return the range of the numbers from the first to the last; None if there are none."""
    ranges = ranges_of(
        serde,
        [
            Comparison(operator, key_value(serde, bound.text))
            for operator, bound in ((Operator.AT_LEAST, first), (Operator.AT_MOST, last))
            if bound is not None
        ],
    )
    if not ranges:
        return None
    gaps = tuple((one.stop or b"", following.start) for one, following in pairwise(ranges))
    return KeyRange(ranges[0].start, ranges[-1].stop, gaps=gaps)


def _shown(key: types_pb2.Key | None) -> str:
    if key is None:
        return "the end"
    return shown(key.text) if key.WhichOneof("key") == "text" else f"0x{key.raw.hex()[:SHOWN_MAX]}"
