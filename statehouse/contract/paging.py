"""Ranges and page tokens of scans, the same at nodes and routers.

Pages follow the unsigned byte order of serialized keys (of entry keys, where a key has several entries) over all
partitions, so the last key returned is the resume point of every partition: a token stays valid when partitions move to
other nodes.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from statehouse.contract.formats import PAGE_TOKEN, NewerFormatError
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.version_names import of_other_version
from statehouse.control.v1 import page_token_pb2
from statehouse.errors import SHOWN_MAX, LookupFailure, Reason, shown
from statehouse.keys import ordered as ordered_keys
from statehouse.serdes import Serde
from statehouse.v1 import query_service_pb2, types_pb2

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

T = TypeVar("T")
LAST_MS = 2**62


def page_bytes(max_message_bytes: int) -> int:
    """Return the most bytes of keys and values to put into a page.

    A JSON value becomes larger as a typed value; a quarter of the message leaves room for that.
    """
    return max_message_bytes // 4


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Serialized keys k with start <= k < stop (None: no upper end), in ascending or descending order.

    `gaps`, in ascending order, are left out, each from its first bytes to below its second: a range of numbers has
    gaps in the order of bytes.
    """

    start: bytes = b""
    stop: bytes | None = None
    reverse: bool = False
    gaps: tuple[tuple[bytes, bytes], ...] = ()

    def parts(self) -> Sequence[KeyRange]:
        """Return the ranges without gaps that together are this one, in its order; none of them is empty."""
        starts = (self.start, *(max(self.start, end) for _, end in self.gaps))
        stops = (*(begin if self.stop is None else min(self.stop, begin) for begin, _ in self.gaps), self.stop)
        parts = [
            KeyRange(start, stop, self.reverse)
            for start, stop in zip(starts, stops, strict=True)
            if stop is None or start < stop
        ]
        return parts[::-1] if self.reverse else parts


def serialized_key(key: types_pb2.Key, serde: Serde) -> bytes:
    """Return the bytes of a request's key.

    Raises:
        LookupFailure: INVALID_KEY, the key is unset or its text does not parse.

    """
    form = key.WhichOneof("key")
    if form == "raw":
        return key.raw
    if form is None:
        raise LookupFailure(Reason.INVALID_KEY, 'the key is missing: send {"text": "..."} or {"raw": "<base64>"}')
    return parsed_key(key.text, serde)


def parsed_key(text: str, serde: Serde) -> bytes:
    """Return the bytes of a key that is given as text.

    Raises:
        LookupFailure: INVALID_KEY, the text does not parse.

    """
    try:
        return serde.parse(text)
    except ValueError as error:
        raise LookupFailure(
            Reason.INVALID_KEY,
            f"the key {shown(text)} does not parse: {str(error)[:SHOWN_MAX]}",
            {"key": text[:SHOWN_MAX]},
        ) from error


TimedRangeRequest = query_service_pb2.ScanWindowsRequest | query_service_pb2.ScanSessionsRequest
RangeRequest = query_service_pb2.ScanRequest | TimedRangeRequest
TimedRequest = TimedRangeRequest | query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest
PagedRequest = RangeRequest | TimedRequest | query_service_pb2.GetHistoryRequest


def page_size(request: PagedRequest) -> int:
    """Return the number of entries a page may have."""
    return min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def escaped_range(keys: KeyRange) -> KeyRange:
    """Return the range of all entries of a range of keys.

    Escaped keys sort like keys and none is a prefix of another, so a key's bound holds for all its entries.
    """
    stop = None if keys.stop is None else ordered_keys.escaped(keys.stop)
    gaps = tuple((ordered_keys.escaped(begin), ordered_keys.escaped(end)) for begin, end in keys.gaps)
    return KeyRange(ordered_keys.escaped(keys.start), stop, keys.reverse, gaps)


def after_page(keys: KeyRange, request: PagedRequest) -> KeyRange:
    """Return the part of a range that the request's page token leaves to read.

    Raises:
        LookupFailure: INVALID_PAGE_TOKEN.

    """
    if not request.page_token:
        return keys
    last = _last_key(request)
    if keys.reverse:
        return replace(keys, stop=last if keys.stop is None else min(keys.stop, last))
    return replace(keys, start=max(keys.start, last + b"\0"))


def time_span(request: TimedRequest) -> tuple[int, int]:
    """Return a request's earliest and latest time, epoch milliseconds; an absent bound means no limit."""
    first_ms = request.from_ms if request.HasField("from_ms") else 0
    last_ms = request.to_ms if request.HasField("to_ms") else LAST_MS
    return max(0, first_ms), last_ms


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the lowest key above all keys with this prefix, None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def next_page_token(
    request: PagedRequest, last_key: bytes, moment: types_pb2.Moment | None = None, version: str = ""
) -> str:
    """Return the token of the page that follows `last_key`, a serialized key or an entry key.

    `moment`: the batch that the page showed, if it was asked to show one. The following pages show the same.
    `version`: of the application, as stamps have it. The following pages are of the same.
    """
    token = page_token_pb2.PageToken(
        last_key=last_key, fingerprint=_fingerprint(request), format_version=PAGE_TOKEN.written, version=version
    )
    if moment is not None:
        token.moment_query_id, token.moment_batch_id = moment.query_id, moment.batch_id
    return base64.urlsafe_b64encode(token.SerializeToString()).decode()


def bound_of_page(request: PagedRequest) -> MomentBound | None:
    """Return which batch a page is to show: the one that its token names, else what the request asks for.

    Raises:
        LookupFailure: INVALID_PAGE_TOKEN, or INVALID_REQUEST if what it asks for is wrong.

    """
    try:
        asked = MomentBound.from_proto(request.freshness.moment) if request.freshness.HasField("moment") else None
        shown = moment_of_walk(request)
        if shown is None:
            return asked
        of_walk = MomentToken({shown.query_id: shown.batch_id})
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error
    return MomentBound(Asked.EXACTLY, of_walk, None if asked is None else asked.wait_ms)


def moment_of_walk(request: PagedRequest) -> types_pb2.Moment | None:
    """Return the batch that the request's page token says the walk is of; None if there is none.

    Raises:
        LookupFailure: INVALID_PAGE_TOKEN.

    """
    token = _token(request) if request.page_token else page_token_pb2.PageToken()
    if not token.moment_query_id:
        return None
    return types_pb2.Moment(query_id=token.moment_query_id, batch_id=token.moment_batch_id)


def refuse_other_version(request: PagedRequest, version: str) -> None:
    """Refuse the token of another version of the application; `version`: the one that is asked, as stamps have it.

    Raises:
        LookupFailure: VERSION_CHANGED or INVALID_PAGE_TOKEN.

    """
    if request.page_token and (theirs := version_of_page(request)) != version:
        raise of_other_version("page token", theirs, version)


def version_of_page(request: PagedRequest) -> str:
    """Return the version that the request's page token is of, as stamps have it.

    Raises:
        LookupFailure: INVALID_PAGE_TOKEN.

    """
    return _token(request).version if request.page_token else ""


def _last_key(request: PagedRequest) -> bytes:
    return _token(request).last_key


def _token(request: PagedRequest) -> page_token_pb2.PageToken:
    try:
        token = page_token_pb2.PageToken.FromString(base64.b64decode(request.page_token, altchars=b"-_", validate=True))
    except (DecodeError, binascii.Error, ValueError) as error:
        raise LookupFailure(Reason.INVALID_PAGE_TOKEN, "the page token is damaged") from error
    try:
        PAGE_TOKEN.check(token.format_version)
    except NewerFormatError as error:
        raise LookupFailure(Reason.INVALID_PAGE_TOKEN, f"{error}, or begin the scan anew") from error
    if token.fingerprint != _fingerprint(request):
        raise LookupFailure(Reason.INVALID_PAGE_TOKEN, "the page token belongs to another scan")
    return token


def _fingerprint(request: PagedRequest) -> int:
    """Return a checksum of the query and the fields that must be equal on every page of a scan."""
    identity: Any = type(request)()
    identity.CopyFrom(request)
    for name in ("page_size", "page_token", "freshness", "raw", "partition", "partitions", "forwarding"):
        if name in identity.DESCRIPTOR.fields_by_name:
            identity.ClearField(name)
    return zlib.crc32(identity.SerializeToString(deterministic=True), zlib.crc32(identity.DESCRIPTOR.name.encode()))


@dataclass(frozen=True, slots=True)
class PartialPage(Generic[T]):
    """A page of some partitions, in key order, and whether they have more after it."""

    items: Sequence[T]
    has_more: bool


def merged(
    parts: Sequence[PartialPage[T]], key_of: Callable[[T], bytes], limit: int, *, reverse: bool
) -> PartialPage[T]:
    """Merge the pages of several partitions: at most `limit` items, in key order.

    If a part has more, the result ends at that part's last key: its items beyond that key are not known yet.

    Raises:
        LookupFailure: INTERNAL, a part has more but returned nothing.

    """
    unfinished = [part for part in parts if part.has_more]
    if not all(part.items for part in unfinished):
        raise LookupFailure(Reason.INTERNAL, "a partition says it has more entries and returned none")
    cut_short = [key_of(part.items[-1]) for part in unfinished]
    known_to = (max if reverse else min)(cut_short) if cut_short else None
    if len(parts) == 1:  # in order already, and as far as it is known
        return PartialPage(parts[0].items[:limit], parts[0].has_more or len(parts[0].items) > limit)
    # The parts are in order, so this takes little more than to look at each item, which their reader did too.
    items = sorted(itertools.chain.from_iterable(part.items for part in parts), key=key_of, reverse=reverse)[:limit]
    while known_to is not None and items and _is_beyond(key_of(items[-1]), known_to, reverse=reverse):
        items.pop()
    return PartialPage(items, has_more=known_to is not None or sum(len(part.items) for part in parts) > len(items))


def _is_beyond(key: bytes, last: bytes, *, reverse: bool) -> bool:
    return key < last if reverse else key > last
