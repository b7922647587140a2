"""How batches cut a changelog, and which of them replicas keep. Pure.

Every record that a batch writes into a changelog has a header with the batch's id. It cuts the log: before a replica
applies the first record of another batch, it keeps what it has. What it keeps is the state of all offsets from the one
after the last record to the next batch's first record, because no record is between them. The commits topic names it:
it says where each batch ends in each partition. So a replica never waits in order to keep a batch, and a partition
without records in a batch shows it all the same.

An end that is too late only costs that the batch can't be shown; one that is too early would show the batch before it
under its name. So the header is looked at, too: it must not be a later batch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from statehouse.contract.moments import NONE
from statehouse.serdes.wire import varint

HEADER: Final = "b"
"""The header that has a record's batch, as `header_value` writes it."""
DENSE: Final = 32
"""So many of the newest batches are kept, and then each 16th of as many as 256."""
_EVERY: Final = 16
_SPARSE: Final = 256
_VARINT_BYTES_MAX: Final = 9


def header_value(batch_id: int) -> bytes:
    """Return a batch's id as the header has it: seven bits a byte, the lowest first (as protobuf's varints)."""
    return varint(batch_id)


def batch_in(headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    """Return the batch that a record's headers name, `NONE` if they name none."""
    for name, value in headers or ():
        if name == HEADER:
            return _batch_of(value or b"")
    return NONE


def _batch_of(data: bytes) -> int:
    if not data or len(data) > _VARINT_BYTES_MAX or data[-1] > 0x7F or any(byte <= 0x7F for byte in data[:-1]):
        return NONE
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


def is_state_of(last: int, lo: int, hi: int, batch_id: int, end: int) -> bool:
    """Whether a state is the one at the end of a batch.

    Args:
        last: the batch that the state's newest record names.
        lo: the offset after that record; 0 if there is none.
        hi: up to this offset no other record is known to be.
        batch_id: the batch.
        end: where it ends in the partition.

    """
    return lo <= end <= hi and last <= batch_id and (last > NONE or lo == 0)


def is_kept(batch_id: int, newest: int) -> bool:
    """Whether a batch is kept once a replica has reached the newest one.

    All replicas keep the same, so a walk that goes on at another finds its batch there.
    """
    age = newest - batch_id
    return age < DENSE or (batch_id % _EVERY == 0 and age < DENSE + _SPARSE)


def covers(first: int, last: int, newest: int) -> bool:
    """Whether a state that is the same from one batch to another is kept, for at least one of them."""
    return first <= last and (
        is_kept(last, newest) or (last - last % _EVERY >= first and is_kept(last - last % _EVERY, newest))
    )
