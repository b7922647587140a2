"""Lookups of many keys, split into calls that client and server accept; no number or size of lookups is too much.

The client knows its own bounds only. A server with smaller bounds refuses a batch, or leaves out answers that don't
fit; the client then asks for these again in halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from statehouse.client import conversion
from statehouse.client.answers import Answer
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.batches import MAX_ENTRIES, BatchCapacity, chunks, halves, is_too_big
from statehouse.v1 import query_service_pb2

# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD: Final = 16

LookupOutcome = Answer | LookupFailure
AskBatch = Callable[[query_service_pb2.BatchGetRequest], Awaitable[query_service_pb2.BatchGetResponse]]


def room_of_call(max_bytes: int) -> BatchCapacity:
    """Return the room for requests in one call."""
    return BatchCapacity(MAX_ENTRIES, max_bytes, _ENTRY_OVERHEAD)


async def batch_get(
    requests: Sequence[query_service_pb2.GetRequest], ask: AskBatch, max_bytes: int
) -> list[LookupOutcome]:
    """Return one outcome a request, in their order; a failed call is the outcome of each of its requests."""
    outcomes: dict[int, LookupOutcome] = {}
    calls: deque[Sequence[int]] = deque(
        chunks(range(len(requests)), lambda index: requests[index].ByteSize(), partial(room_of_call, max_bytes))
    )
    while calls:
        indexes = calls.popleft()
        results: list[LookupOutcome]
        again: Sequence[int] = ()
        try:
            results = await _ask_for([requests[index] for index in indexes], ask)
        except LookupFailure as failure:
            results = [failure] * len(indexes)
            if is_too_big(failure, len(indexes)):
                again = indexes
        else:
            if len(indexes) > 1:
                again = [index for index, result in zip(indexes, results, strict=True) if _found_no_room(result)]
        outcomes.update(zip(indexes, results, strict=True))
        calls.extendleft(part for part in reversed(halves(again)) if part)
    return [outcomes[index] for index in range(len(requests))]


async def _ask_for(requests: list[query_service_pb2.GetRequest], ask: AskBatch) -> list[LookupOutcome]:
    results = (await ask(query_service_pb2.BatchGetRequest(requests=requests))).results
    if len(results) != len(requests):
        raise LookupFailure(Reason.INTERNAL, f"{len(results)} results to {len(requests)} lookups")
    return conversion.from_batch_get(results, (each.store for each in requests))


def _found_no_room(outcome: LookupOutcome) -> bool:
    """Whether an answer found no room in the message next to the others."""
    return isinstance(outcome, LookupFailure) and outcome.reason is Reason.MESSAGE_TOO_LARGE
