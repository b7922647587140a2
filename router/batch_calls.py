"""One BatchGet to one node: how much fits into it, and what its answer says of each lookup."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from router.concurrency import map_bounded
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2
from statehouse.wire import frames

MAX_ENTRIES: Final = 1_000
ENTRY_OVERHEAD: Final = 32
"""What framing and the forwarding add to an entry, in bytes, rounded up."""
# What a node says to more than one of its messages or one of its batches holds.
_TOO_BIG: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.INVALID_REQUEST})
# How a BatchGetResult begins that holds an error, its field 2.
_ERROR: Final = b"\x12"

Entry = TypeVar("Entry")


def chunks(entries: Iterable[Entry], size: Callable[[Entry], int], max_bytes: int) -> Iterator[list[Entry]]:
    """Split entries, in order, into batches that a message holds; an entry that is too big by itself stands alone.

    `size(entry)`: its bytes without framing and forwarding.
    """
    chunk: list[Entry] = []
    total = 0
    for entry in entries:
        cost = size(entry) + ENTRY_OVERHEAD
        if chunk and (len(chunk) >= MAX_ENTRIES or total + cost > max_bytes):
            yield chunk
            chunk, total = [], 0
        chunk.append(entry)
        total += cost
    if chunk:
        yield chunk


def is_too_big(failure: LookupFailure, entries: Sequence[object]) -> bool:
    """Whether a batch failed as a whole by its size, or by its answer's, and may be halved."""
    return len(entries) > 1 and failure.reason in _TOO_BIG


async def halving(ask: Callable[[Sequence[Entry]], Awaitable[bool]], entries: Sequence[Entry]) -> None:
    """Ask for all entries at once; for each half of them if that is too big, and so on.

    `ask(entries)` returns False if it was too big, by `is_too_big`, and no entry has an outcome.
    """
    if not await ask(entries):
        half = len(entries) // 2
        await map_bounded(partial(halving, ask), (entries[:half], entries[half:]), at_once=2)


def results(answer: bytes, count: int) -> Sequence[bytes]:
    """Return the serialized BatchGetResults of an answer to `count` lookups.

    Raises:
        LookupFailure: INTERNAL, it is no such answer.

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
    """Return what a Get would have come to instead of this serialized BatchGetResult."""
    failure = failure_in(result)
    if failure is not None:
        return failure
    try:
        (response,) = frames(result)
    except (DecodeError, ValueError):
        return LookupFailure(Reason.INTERNAL, "unreadable result in a batch answer")
    return response
