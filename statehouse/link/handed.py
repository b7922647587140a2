"""What a proxy hands over: requests that it has sent to nodes already, and what comes of those calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from statehouse.control.v1 import express_pb2
from statehouse.errors import LookupFailure
from statehouse.v1 import errors_pb2

Came = asyncio.Future[bytes | LookupFailure | None]
_UNDER_WAY: Final = express_pb2.HANDED_OUTCOME_UNSPECIFIED
_MICROSECOND: Final = 1e-6


@dataclass(frozen=True, slots=True)
class HandedLookup:
    """A call that the proxy has made to a node, and hands over because it is late or did not go well.

    `address`: host:port that it was made to. `sent_at`: when, in the loop's time; of one that was answered, as if it
    were just now. `took_s`: how long that took; None if it wasn't. `came`: the node's answer or refusal; None if
    nothing is known; or CallFailed is raised. `lookups`: how many of a batch, in their order, it is for.
    `partitions`: of a page, which it is for.
    """

    instance_id: str
    address: str
    sent_at: float
    came: Came
    lookups: int = 1
    partitions: tuple[int, ...] = ()
    took_s: float | None = None

    def was_made_to(self, instance_id: str, address: str) -> bool:
        """Whether the call was made to a node at this address.

        The proxy's snapshot may be older than what the router knows: what came of a call to an address that the node
        has left says nothing about the node.
        """
        return self.instance_id == instance_id and self.address == address


class HandedCalls:
    """The calls that were handed over and are under way. Lives on the event loop. `failed` makes the error of one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[bytes], Exception]) -> None:
        self._loop, self._failed = loop, failed
        self._under_way: dict[int, Came] = {}

    def take(self, data: bytes) -> tuple[tuple[HandedLookup, ...], tuple[int, ...], int]:
        """Return the calls of a serialized HandedRequest, the numbers to forget when it is over, and its snapshot's."""
        now = self._loop.time()
        calls: list[HandedLookup] = []
        numbers: list[int] = []
        request = express_pb2.HandedRequest.FromString(data)
        for each in request.calls:
            came: Came = self._loop.create_future()
            had_s = each.took_us * _MICROSECOND
            took_s = had_s if each.outcome == express_pb2.HANDED_OUTCOME_ANSWERED else None
            of = (each.lookups, tuple(each.partitions), took_s)
            calls.append(HandedLookup(each.instance_id, each.address, now - had_s, came, *of))
            if each.outcome == _UNDER_WAY:
                self._under_way[each.number] = came
                numbers.append(each.number)
            else:
                self._set(came, each.outcome, each.content)
        return tuple(calls), tuple(numbers), request.snapshot

    def ended(self, number: int, content: bytes) -> None:
        """Take what came of a call: its outcome in a byte, and what that has to say."""
        if (came := self._under_way.pop(number, None)) is not None and not came.done():
            self._set(came, content[0], content[1:])

    def forget(self, numbers: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for number in numbers:
            self._under_way.pop(number, None)

    def _set(self, came: Came, outcome: int, content: bytes) -> None:
        if outcome == express_pb2.HANDED_OUTCOME_ANSWERED:
            came.set_result(content)
        elif outcome == express_pb2.HANDED_OUTCOME_REFUSED:
            came.set_result(LookupFailure.from_proto(errors_pb2.LookupError.FromString(content)))
        elif outcome == express_pb2.HANDED_OUTCOME_FAILED:
            came.set_exception(self._failed(content))
            came.exception()  # nobody may be left to ask for it
        else:
            came.set_result(None)
