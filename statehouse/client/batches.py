"""Lookups of many keys: split into calls that client and server can take, never failed for their number or size.

What a call may hold is known of this side only; a server with smaller bounds refuses a batch, or leaves out the answers
that don't fit, and those are asked for again in halves.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from statehouse.client import conversion
from statehouse.client.answers import Answer
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2

MAX_ENTRIES: Final = 1_000
"""Most lookups in a call: what servers take by default."""
# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD: Final = 16
# How a call fails that is more than a message or a batch holds, and an entry whose answer found no room in the message.
_TOO_BIG_CALL: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.INVALID_REQUEST})
_TOO_BIG_ANSWER: Final = frozenset({Reason.MESSAGE_TOO_LARGE})

Outcome = Answer | LookupFailure
Ask = Callable[[query_service_pb2.BatchGetRequest], Awaitable[query_service_pb2.BatchGetResponse]]


def fitting(sizes: Iterable[int], max_bytes: int) -> int:
    """Return how many of the first requests fit into one call; one that is too large by itself goes alone."""
    count = total = 0
    for size in sizes:
        total += size + _ENTRY_OVERHEAD
        if count == MAX_ENTRIES or (count and total > max_bytes):
            break
        count += 1
    return count


async def batch_get(requests: Sequence[query_service_pb2.GetRequest], ask: Ask, max_bytes: int) -> list[Outcome]:
    """Return one outcome a request, in their order; a failed call is the outcome of each of its requests."""
    outcomes: dict[int, Outcome] = {}
    chunks = deque(_chunks(requests, max_bytes))
    while chunks:
        chunk = chunks.popleft()
        results: list[Outcome]
        try:
            results = await _ask_for([requests[index] for index in chunk], ask)
            too_big = _TOO_BIG_ANSWER
        except LookupFailure as failure:
            results = [failure] * len(chunk)
            too_big = _TOO_BIG_CALL
        outcomes.update(zip(chunk, results, strict=True))
        if len(chunk) > 1:
            again = [index for index in chunk if _has_reason(outcomes[index], too_big)]
            half = (len(again) + 1) // 2
            chunks.extendleft(part for part in (again[half:], again[:half]) if part)
    return [outcomes[index] for index in range(len(requests))]


def _chunks(requests: Sequence[query_service_pb2.GetRequest], max_bytes: int) -> Iterator[list[int]]:
    """Yield indexes of requests that fit into one call."""
    sizes = [request.ByteSize() for request in requests]
    start = 0
    while start < len(sizes):
        end = start + fitting(itertools.islice(sizes, start, None), max_bytes)
        yield list(range(start, end))
        start = end


async def _ask_for(requests: list[query_service_pb2.GetRequest], ask: Ask) -> list[Outcome]:
    results = (await ask(query_service_pb2.BatchGetRequest(requests=requests))).results
    if len(results) != len(requests):
        raise LookupFailure(Reason.INTERNAL, f"{len(results)} results to {len(requests)} lookups")
    return [conversion.from_batch_get(*each) for each in zip(results, (each.store for each in requests), strict=True)]


def _has_reason(outcome: Outcome, reasons: frozenset[Reason]) -> bool:
    return isinstance(outcome, LookupFailure) and outcome.reason in reasons
