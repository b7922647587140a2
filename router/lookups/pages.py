"""Puts pages of several partitions together in key order, without reading their entries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from statehouse.batches import BatchCapacity, fits, fitting
from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.paging import PartialPage, RangeRequest, merged, next_page_token, page_size

# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD: Final = 8


def joined(request: RangeRequest, pages: Sequence[bytes], max_bytes: int) -> bytes:
    """Return the page, serialized, that nodes' serialized pages make together. Their entries have keys beside them.

    `max_bytes`: of its entries together; the first one may exceed it.

    Raises:
        LookupFailure: INTERNAL, a page has not a key for each of its entries, or has none though there are more.

    """
    frames = [frames_pb2.PageFrames.FromString(page) for page in pages]
    if any(len(each.entry_keys) != len(each.entries) for each in frames):
        message = "a node's page has not a key for each entry: update nodes first, to this router's version"
        raise LookupFailure(Reason.INTERNAL, message)
    parts = [
        PartialPage(list(zip(each.entry_keys, each.entries, strict=True)), bool(each.next_page_token))
        for each in frames
    ]
    page = merged(parts, itemgetter(0), page_size(request), reverse=request.reverse)
    entries = [entry for _, entry in page.items]
    sizes = list(map(len, entries))
    has_more = page.has_more
    if not fits(sizes, max_bytes, _ENTRY_OVERHEAD):
        kept = fitting(sizes, BatchCapacity(len(sizes), max_bytes, _ENTRY_OVERHEAD))
        has_more = has_more or kept < len(entries)
        del entries[kept:]
    return frames_pb2.PageFrames(
        entries=entries,
        next_page_token=next_page_token(request, page.items[len(entries) - 1][0]) if has_more else "",
        replicas=[stamp for each in frames for stamp in each.replicas],
    ).SerializeToString()
