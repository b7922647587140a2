"""Batches bounded in number and in size: which entries of a sequence go together into one message. Pure.

An entry that is too large on its own goes alone, and the receiver refuses it. Only this side's bounds are known: if the
other side accepts less and refuses a batch, the batch is sent again in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from statehouse.errors import LookupFailure, Reason

MAX_ENTRIES: Final = 1_000
"""Most lookups in a call; servers accept as many by default."""
# How a call fails that exceeds a message or a batch.
_TOO_BIG: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.INVALID_REQUEST})

Entry = TypeVar("Entry")


class BatchCapacity:
    """The room left in a batch: in entries, and in bytes of all entries together. The first entry may exceed the bytes.

    `overhead`: bytes that framing adds to each entry, rounded up.
    """

    __slots__ = ("_bytes", "_entries", "_is_empty", "_overhead")

    def __init__(self, max_entries: int, max_bytes: int, overhead: int = 0) -> None:
        self._entries, self._bytes, self._overhead = max_entries, max_bytes, overhead
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Whether an entry of `size` bytes fits into the batch; if it does, its room is taken."""
        left = self._bytes - size - self._overhead
        if self._entries == 0 or (left < 0 and not self._is_empty):
            return False
        self._entries -= 1
        self._bytes, self._is_empty = left, False
        return True


def fitting(sizes: Iterable[int], room: BatchCapacity) -> int:
    """Return how many of the first entries go into a batch."""
    count = 0
    for size in sizes:
        if not room.takes(size):
            break
        count += 1
    return count


def chunks(
    entries: Iterable[Entry], size_of: Callable[[Entry], int], new_capacity: Callable[[], BatchCapacity]
) -> Iterator[list[Entry]]:
    """Split entries, in order, into batches, each as full as possible."""
    chunk: list[Entry] = []
    room = new_capacity()
    for entry in entries:
        size = size_of(entry)
        if not room.takes(size):
            yield chunk
            chunk, room = [], new_capacity()
            room.takes(size)
        chunk.append(entry)
    if chunk:
        yield chunk


def too_large(max_bytes: int) -> LookupFailure:
    """Return the failure of lookups whose answers together are more than a message of `max_bytes` holds."""
    message = f"the answers together exceed max_message_bytes {max_bytes}: ask for fewer"
    return LookupFailure(Reason.MESSAGE_TOO_LARGE, message)


def is_too_big(failure: LookupFailure, count: int) -> bool:
    """Whether a call of `count` lookups failed because it or its answer is too large, and may be halved."""
    return count > 1 and failure.reason in _TOO_BIG


def halves(entries: Sequence[Entry]) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """Return the two halves of a batch that was too large."""
    half = len(entries) // 2
    return entries[:half], entries[half:]


def fits(sizes: Collection[int], max_bytes: int, overhead: int) -> bool:
    """Whether answers of these sizes go into one message."""
    return sum(sizes) + overhead * len(sizes) <= max_bytes


def kept_within(sizes: Sequence[int], refusal_size: int, max_bytes: int, overhead: int) -> list[bool]:
    """Return which answers, in order, are kept in one message; refusals of `refusal_size` bytes replace the others.

    If not all fit, an answer is kept as long as every later one could still be refused. No answer is replaced by a
    refusal larger than itself.
    """
    if fits(sizes, max_bytes, overhead):
        return [True] * len(sizes)
    room = max_bytes - (refusal_size + overhead) * len(sizes)
    kept = []
    for size in sizes:
        more = size - refusal_size
        kept.append(more <= max(0, room))
        if kept[-1]:
            room -= more
    return kept
