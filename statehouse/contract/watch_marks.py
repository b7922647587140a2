"""Where watches that mark moments go on: after a response, and after a mark, which has a token for it. Pure."""

from __future__ import annotations

from typing import Final

from statehouse.contract.moments import NONE
from statehouse.contract.token_texts import data_in, packed, text_of, unpacked
from statehouse.v1 import query_service_pb2

_BYTES_MAX: Final = 1024 * 1024
_WHAT: Final = "mark of a watch"


def position_of(partition: int, response: query_service_pb2.WatchResponse) -> query_service_pb2.WatchPosition:
    """Return where a partition's watch goes on after a response, which has a position.

    Before the end of a batch that one may still be marked; at its end only a later one.
    """
    position = query_service_pb2.WatchPosition(
        partition=partition,
        position=response.position,
        topic_id=response.topic_id,
        version=response.replica.version,
    )
    if response.HasField("moment"):
        after = response.moment.batch_id if response.moment_ends else response.moment.batch_id - 1
        if after > NONE:
            position.after.query_id, position.after.batch_id = response.moment.query_id, after
    return position


def token_of(mark: query_service_pb2.WatchMark) -> str:
    """Return a mark as text."""
    return text_of(packed(mark))


def mark_in(token: str) -> query_service_pb2.WatchMark:
    """Read what `token_of` wrote.

    Raises:
        ValueError: it is none.

    """
    mark = unpacked(data_in(token, _WHAT), query_service_pb2.WatchMark, _BYTES_MAX, _WHAT)
    if not mark.HasField("moment"):
        raise ValueError(f"not a {_WHAT}: it names no batch")
    return mark
