"""Waiting for a position of a partition at a node: one attempt waits, and lookups that want as much wait along.

Without this, a thousand lookups that wait for a position that never comes would keep router and node busy with asking
again. A lookup that wants less than the waiting attempt asks on its own: its position may come earlier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from router.calls.attempts import CallOutcome
from router.choice.attempt_log import OF_NODE
from statehouse.contract.consistency import below
from statehouse.errors import LookupFailure, Reason

_Place = tuple[str, str, int]
"""Instance id, store and partition."""
_SHARED: Final = OF_NODE | {Reason.POSITION_NOT_REACHED}
"""Failures that all who wait there would meet."""
# How many of the lookups that waited along go on at a time, with pauses. Without pauses, their next work would keep the
# event loop from others, now and each time that they wake up together.
_TOLD_AT_ONCE: Final = 16
_TELLING_PAUSE_S: Final = 0.002


@dataclass(eq=False, slots=True)
class _Wait:
    """An attempt that waits, and the lookups that wait along. The outcome is None if it was given up."""

    wanted: int
    along: deque[asyncio.Future[CallOutcome | None]] = field(default_factory=deque)

    def tell(self, outcome: CallOutcome | None) -> None:
        for _ in range(min(len(self.along), _TOLD_AT_ONCE)):
            if not (each := self.along.popleft()).done():
                each.set_result(outcome)
        if self.along:
            asyncio.get_running_loop().call_later(_TELLING_PAUSE_S, self.tell, outcome)


class JoinedWaits:
    """The attempts that wait. Lives on the event loop."""

    def __init__(self) -> None:
        self._under_way: dict[_Place, _Wait] = {}

    async def ask(
        self,
        place: _Place,
        wanted: int,
        behind: LookupFailure,
        timeout_s: float,
        attempt: Callable[[], Awaitable[CallOutcome]],
    ) -> CallOutcome:
        """Make an attempt, or wait along with one that is under way.

        Args:
            place: where to wait.
            wanted: the position to reach there.
            behind: what the place has said before; it is the outcome if nothing else is known after `timeout_s`.
            timeout_s: seconds to wait along at most; an attempt has its own bound.
            attempt: makes one.

        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while (wait := self._under_way.get(place)) is not None and wait.wanted <= wanted:
            told: asyncio.Future[CallOutcome | None] = loop.create_future()
            wait.along.append(told)
            try:
                async with asyncio.timeout_at(until):
                    outcome = await told
            except TimeoutError:
                return behind
            if isinstance(outcome, LookupFailure) and outcome.reason in _SHARED:
                return _for(outcome, wanted)
            if outcome is not None:
                return await attempt()  # what they waited for is there, or the outcome is about the other request
        return await self._lead(place, _Wait(wanted), attempt)

    async def _lead(self, place: _Place, wait: _Wait, attempt: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome:
        self._under_way[place] = wait
        outcome: CallOutcome | None = None
        try:
            outcome = await attempt()
        finally:
            if self._under_way.get(place) is wait:
                del self._under_way[place]
            wait.tell(outcome)
        return outcome


def _for(failure: LookupFailure, wanted: int) -> LookupFailure:
    """Return the failure of a lookup that wants at least as much of the same node."""
    said = failure.metadata
    if failure.reason is not Reason.POSITION_NOT_REACHED:
        return failure
    return LookupFailure(
        failure.reason,
        below(said.get("position", "unknown"), wanted),
        said | {"wanted": str(wanted)},
        route=failure.route,
    )
