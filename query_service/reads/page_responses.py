"""Pages in their wire form, which must fit into a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, MutableSequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from query_service.stores.base import RangePage
from statehouse.batches import BatchCapacity, fitting
from statehouse.waiting import in_turns

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
