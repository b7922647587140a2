"""Puts pages of several partitions together in key order, without reading their entries where it can. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from statehouse.contract.paging import PartialPage, RangeRequest, merged, next_page_token, page_size, serialized_key
from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.runtime.batches import BatchCapacity, fits, fitting
from statehouse.serdes import Serde
from statehouse.v1 import query_service_pb2, types_pb2

# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD: Final = 8


def joined(
    request: RangeRequest,
    pages: Sequence[bytes],
    max_bytes: int,
    key_serde: Serde,
    moment: types_pb2.Moment | None = None,
    version: str = "",
) -> bytes:
    """Return the page, serialized, that nodes' serialized pages make together.

    Args:
        request: what the page is of.
        pages: their entries come with keys, except from nodes of earlier versions.
        max_bytes: of its entries together; the first one may exceed it.
        key_serde: the store's.
        moment: the batch that all of them show, if the request asked for one.
        version: of the application, as stamps have it.

    Raises:
        LookupFailure: INTERNAL, a page has no entries though there are more, or is of a node that is too old for the
            request.

    """
    frames = [frames_pb2.PageFrames.FromString(page) for page in pages]
    parts = [
        PartialPage(
            list(zip(_keys(request, page, each, key_serde), each.entries, strict=True)), bool(each.next_page_token)
        )
        for page, each in zip(pages, frames, strict=True)
    ]
    page = merged(parts, itemgetter(0), page_size(request), reverse=request.reverse)
    entries = [entry for _, entry in page.items]
    sizes = list(map(len, entries))
    has_more = page.has_more
    if not fits(sizes, max_bytes, _ENTRY_OVERHEAD):
        kept = fitting(sizes, BatchCapacity(len(sizes), max_bytes, _ENTRY_OVERHEAD))
        has_more = has_more or kept < len(entries)
        del entries[kept:]
    token = next_page_token(request, page.items[len(entries) - 1][0], moment, version) if has_more else ""
    return frames_pb2.PageFrames(
        entries=entries,
        next_page_token=token,
        replicas=[stamp for each in frames for stamp in each.replicas],
    ).SerializeToString()


def _keys(request: RangeRequest, page: bytes, frames: frames_pb2.PageFrames, key_serde: Serde) -> Sequence[bytes]:
    """Return the bytes by which a page's entries are in order.

    Nodes of 0.2.0 don't send them with the entries: they are read from these, while a fleet is updated. Such a node
    ignores what it doesn't know. Where that would make its page wrong, the page is refused.
    """
    if len(frames.entry_keys) == len(frames.entries):
        return frames.entry_keys
    if isinstance(request, query_service_pb2.ScanSessionsRequest):
        raise _too_old("it can't scan sessions")
    if isinstance(request, query_service_pb2.ScanWindowsRequest):
        return [
            WindowKey(serialized_key(each.key, key_serde), each.window.start_ms, each.sequence).to_entry_key()
            for each in query_service_pb2.ScanWindowsResponse.FromString(page).windows
        ]
    if request.HasField("as_of_ms"):
        raise _too_old("it can't scan as of a time")
    return [serialized_key(each.key, key_serde) for each in query_service_pb2.ScanResponse.FromString(page).entries]


def _too_old(what: str) -> LookupFailure:
    message = f"a node's page has not a key for each entry: the node is of an earlier version, and {what}; update it"
    return LookupFailure(Reason.INTERNAL, message)
