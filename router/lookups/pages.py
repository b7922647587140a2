"""Puts pages of several partitions together in key order, without reading their entries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from router.lookups.pages_without_keys import entry_keys_of
from statehouse.contract.paging import PartialPage, RangeRequest, merged, next_page_token, page_size
from statehouse.control.v1 import frames_pb2
from statehouse.runtime.batches import BatchCapacity, fits, fitting
from statehouse.serdes import Serde

# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD: Final = 8


def joined(request: RangeRequest, pages: Sequence[bytes], max_bytes: int, key_serde: Serde) -> bytes:
    """Return the page, serialized, that nodes' serialized pages make together.

    Args:
        request: what the page is of.
        pages: their entries come with keys, except from nodes of earlier versions.
        max_bytes: of its entries together; the first one may exceed it.
        key_serde: the store's.

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
    return frames_pb2.PageFrames(
        entries=entries,
        next_page_token=next_page_token(request, page.items[len(entries) - 1][0]) if has_more else "",
        replicas=[stamp for each in frames for stamp in each.replicas],
    ).SerializeToString()


def _keys(request: RangeRequest, page: bytes, frames: frames_pb2.PageFrames, key_serde: Serde) -> Sequence[bytes]:
    """Return the bytes by which a page's entries are in order."""
    if len(frames.entry_keys) == len(frames.entries):
        return frames.entry_keys
    return entry_keys_of(request, page, key_serde)
