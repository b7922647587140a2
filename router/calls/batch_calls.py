"""One BatchGet to one node: how many lookups fit, and each lookup's part of the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.batches import MAX_ENTRIES, BatchCapacity, halves
from statehouse.serdes.wire import frames
from statehouse.v1 import query_service_pb2

ENTRY_OVERHEAD: Final = 32
"""Bytes that framing and forwarding add to an entry, rounded up."""
# The first byte of a BatchGetResult that holds an error: the tag of field 2.
_ERROR: Final = b"\x12"

Entry = TypeVar("Entry")


def room_of_call(max_bytes: int) -> BatchCapacity:
    """Return the room for lookups in one call; their sizes come without framing and forwarding."""
    return BatchCapacity(MAX_ENTRIES, max_bytes, ENTRY_OVERHEAD)


async def halving(ask: Callable[[Sequence[Entry]], Awaitable[bool]], entries: Sequence[Entry]) -> None:
    """Ask for all entries in one call; if that is too big, ask for each half, one after the other, and so on.

    `ask(entries)` returns False if the call was too big (`is_too_big`); then no entry has an outcome. Each answer may
    be as large as a message: if all parts were asked for together, there could be a hundred of them.
    """
    if not await ask(entries):
        for half in halves(entries):
            await halving(ask, half)


def results(answer: bytes, count: int) -> Sequence[bytes]:
    """Return the serialized BatchGetResults of an answer to `count` lookups.

    Raises:
        LookupFailure: INTERNAL, the bytes are no answer to so many lookups.

    """
    try:
        found = frames(answer)
    except DecodeError as error:
        raise LookupFailure(Reason.INTERNAL, f"unreadable batch answer: {error}") from error
    if len(found) != count:
        raise LookupFailure(Reason.INTERNAL, f"{len(found)} results to {count} lookups")
    return found


def failure_in(result: bytes) -> LookupFailure | None:
    """Return the failure that a serialized BatchGetResult holds, None if it holds a response."""
    if not result.startswith(_ERROR):
        return None
    return LookupFailure.from_proto(query_service_pb2.BatchGetResult.FromString(result).error)


def outcome_in(result: bytes) -> bytes | LookupFailure:
    """Return a serialized BatchGetResult as the outcome of a Get."""
    failure = failure_in(result)
    if failure is not None:
        return failure
    try:
        (response,) = frames(result)
    except (DecodeError, ValueError):
        return LookupFailure(Reason.INTERNAL, "unreadable result in a batch answer")
    return response
