"""Pages in their wire form, which must fit into a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, MutableSequence, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from query_service.reads.moments import moment_in
from query_service.stores.base import RangePage
from statehouse.contract.paging import RangeRequest, next_page_token
from statehouse.control.v1 import frames_pb2
from statehouse.runtime.batches import BatchCapacity, fitting
from statehouse.runtime.waiting import in_turns
from statehouse.v1 import types_pb2

T = TypeVar("T")
# What the tag and the length of an entry take at most.
_OVERHEAD = 6


async def shown_within(entries: Iterable[T], shown: MutableSequence[Any], max_message_bytes: int) -> AsyncIterator[T]:
    """Yield the entries of a page in turns, until those that have been shown are too much for `within_message`.

    What is decoded then only to be dropped could take many times a message.

    Args:
        entries: the page's entries.
        shown: the response's field; each entry is appended to it before the next is asked for.
        max_message_bytes: size of the largest message.

    """
    room = max_message_bytes // 2
    async for entry in in_turns(entries):
        yield entry
        room -= shown[-1].ByteSize()
        if room < 0:
            return


def within_message(
    response: Message, shown: MutableSequence[Any], page: RangePage[T], max_message_bytes: int
) -> RangePage[T]:
    """Drop the last entries of a response that is too large, and return the page of those that are left.

    A page is bounded by the bytes that are stored, but decoded values may take many times as many: Avro has no names of
    fields. Entries get half of a message, which leaves room for the next page's token. The first one always stays.

    Args:
        response: the response.
        shown: its field with the page's entries, or with the first of them.
        page: what it shows.
        max_message_bytes: size of the largest message.

    """
    if len(shown) == len(page.entries) and response.ByteSize() <= max_message_bytes // 2:
        return page
    room = BatchCapacity(len(shown), max_message_bytes // 2, _OVERHEAD)
    kept = fitting((each.ByteSize() for each in shown), room)
    if kept == len(page.entries):
        return page
    del shown[kept:]
    return RangePage(page.entries[:kept], more=True)


async def serialized_page(
    request: RangeRequest,
    page: RangePage[T],
    stamps: Sequence[types_pb2.ReplicaStamp],
    shown: Callable[[T], Message],
    key_of: Callable[[T], bytes],
    max_message_bytes: int,
) -> bytes:
    """Return the response of a scan, serialized, with as many of a page's entries as `within_message` would keep.

    Args:
        request: what the page is of.
        page: its entries.
        stamps: of the replicas that were read.
        shown: returns an entry as the response has it.
        key_of: returns the bytes by which entries are in order.
        max_message_bytes: size of the largest message.

    """
    response = frames_pb2.PageFrames(replicas=[stamp.SerializeToString() for stamp in stamps])
    with_keys = request.forwarding.entry_keys
    room = max_message_bytes // 2
    entries: list[bytes] = []
    keys: list[bytes] = []
    async for entry in in_turns(page.entries):
        written, key = shown(entry).SerializeToString(), key_of(entry)
        room -= len(written) + _OVERHEAD + (len(key) + _OVERHEAD if with_keys else 0)
        if room < 0 and entries:
            break
        entries.append(written)
        keys.append(key)
    if page.more or len(entries) < len(page.entries):
        response.next_page_token = next_page_token(request, keys[-1], moment_in(stamps[0]), stamps[0].version)
    response.entries.extend(entries)
    if with_keys:
        response.entry_keys.extend(keys)
    return response.SerializeToString()
