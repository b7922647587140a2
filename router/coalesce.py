"""Coalescing: lookups for a node that is being asked already go out together, as one BatchGet.

A call costs a node and the router many times what a lookup in it does. So while a call to a node is under way, further
lookups wait for it to return, and then go together. With none under way a lookup goes at once, as the Get it is: where
there is nothing to gain nobody waits.

Each lookup keeps what it would have had alone: its own answer or refusal, its own deadline, its own end when its caller
leaves. A call keeps others waiting for a moment only: one to a node that is frozen, or that lets a lookup wait for a
position, must not hold up the rest. So there is no bound on the calls to a node but that each has a caller who waits
for it; how many those are, `max_lookups` bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc
import grpc.aio
import structlog

from router.attempts import Outcome
from router.batch_calls import chunks, halving, is_too_big, outcome_in, results
from router.metrics import RouterMetrics
from router.table import Node
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.wire import framed

log = structlog.get_logger(__name__)

Send = Callable[[Node, str, bytes, float], Awaitable[bytes]]

# Calls to a node that are under way before lookups begin to wait. With two, fewer lookups went together and nodes took
# more processor time for each, for no more lookups a second.
_AT_ONCE: Final = 1
# How long a call may keep others waiting.
_LONGEST_WAIT_S: Final = 0.01


class _Entry:
    """A lookup that goes with others. `answer` is what became of it, `expires_at` its deadline in loop time."""

    __slots__ = ("answer", "batch", "body", "expires_at", "node")

    def __init__(self, node: Node, body: bytes, expires_at: float, answer: asyncio.Future[Outcome]) -> None:
        self.node, self.body, self.expires_at, self.answer = node, body, expires_at, answer
        self.batch: _Batch | None = None

    def fail(self, error: Exception) -> None:
        """Have the caller meet an error, unless he has an answer or has left."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Coalescer:
    """Makes calls of a node's QueryService, those of Get together where they can be. Lives on the event loop.

    `send(node, method, body, timeout_s)` makes one call.
    """

    def __init__(self, send: Send, metrics: RouterMetrics, *, max_message_bytes: int) -> None:
        self.send, self.metrics, self.max_message_bytes = send, metrics, max_message_bytes
        self.lines: dict[str, _Line] = {}
        """What is under way, by address; a node that nothing is under way to has none."""

    async def ask(self, node: Node, method: str, body: bytes, timeout_s: float) -> Outcome:
        """Call a method; return the answer, or the node's refusal of a lookup that went with others.

        Raises:
            grpc.RpcError: the call failed, as a whole if it was for several.
            grpc.aio.UsageError: the channel was closed at this moment.
            TimeoutError: the time is up.

        """
        if method != "Get":
            return await self.send(node, method, body, timeout_s)
        line = self.lines.get(node.target)
        if line is None:
            line = self.lines[node.target] = _Line(self, node.target)
        if line.has_room:
            turn = _Turn(line)
            try:
                return await self.send(node, method, body, timeout_s)
            finally:
                turn.end()
        loop = asyncio.get_running_loop()
        entry = _Entry(node, body, loop.time() + timeout_s, loop.create_future())
        outcome = await line.take_along(entry)
        if isinstance(outcome, LookupFailure) and outcome.reason is Reason.WOULD_WAIT:
            return await self.send(node, method, body, max(0.0, entry.expires_at - loop.time()))
        return outcome


class _Line:
    """The calls under way to one address, and the lookups that wait for them."""

    def __init__(self, owner: Coalescer, target: str) -> None:
        self.owner = owner
        self._target = target
        self._under_way = 0
        self._waiting: dict[_Entry, None] = {}

    @property
    def waiting(self) -> int:
        """How many lookups wait."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a call may be made without waiting; then nobody waits."""
        return self._under_way < _AT_ONCE

    async def take_along(self, entry: _Entry) -> Outcome:
        """Return what became of a lookup that goes with the next batch."""
        self._waiting[entry] = None
        timer = asyncio.get_running_loop().call_at(entry.expires_at, entry.fail, TimeoutError())
        try:
            return await entry.answer
        finally:
            timer.cancel()
            self._waiting.pop(entry, None)
            if entry.batch is not None:
                entry.batch.left()

    def begin(self) -> None:
        """Note a call."""
        self._under_way += 1

    def end(self) -> None:
        """Note that a call no longer counts, and send those who have waited for it."""
        self._under_way -= 1
        while self._waiting and self.has_room:
            entries = next(chunks(self._waiting, lambda entry: len(entry.body), self.owner.max_message_bytes))
            for entry in entries:
                del self._waiting[entry]
            _Batch(self, entries)
        if not self._under_way:
            del self.owner.lines[self._target]


class _Turn:
    """One call under way: until it is over others wait, but no longer than a moment."""

    def __init__(self, line: _Line) -> None:
        self._line: _Line | None = line
        self._timer = asyncio.get_running_loop().call_later(_LONGEST_WAIT_S, self.end)
        line.begin()

    def end(self) -> None:
        """Let the others go."""
        if self._line is not None:
            line, self._line = self._line, None
            self._timer.cancel()
            line.end()


class _Batch:
    """Lookups that go together; ends early when all their callers have left."""

    def __init__(self, line: _Line, entries: Sequence[_Entry]) -> None:
        self._owner, self._entries, self._callers = line.owner, entries, len(entries)
        for entry in entries:
            entry.batch = self
        self._turn = _Turn(line)
        self._task = asyncio.get_running_loop().create_task(halving(self._call, entries))
        self._task.add_done_callback(self._over)

    def left(self) -> None:
        """Note that a caller waits no longer, be it that he has his answer."""
        self._callers -= 1
        if not self._callers:
            self._task.cancel()

    async def _call(self, entries: Sequence[_Entry]) -> bool:
        """Make one call and give each entry its outcome; False if it was too big."""
        entries = [entry for entry in entries if not entry.answer.done()]
        if not entries:
            return True
        # The newest caller knows best which process is at the address.
        node = entries[-1].node
        timeout_s = max(0.0, max(entry.expires_at for entry in entries) - asyncio.get_running_loop().time())
        try:
            if len(entries) == 1:
                outcomes: Sequence[Outcome] = [await self._owner.send(node, "Get", entries[0].body, timeout_s)]
            else:
                self._owner.metrics.coalesced(len(entries))
                body = framed(entry.body for entry in entries)
                answer = await self._owner.send(node, "BatchGet", body, timeout_s)
                outcomes = [outcome_in(result) for result in results(answer, len(entries))]
        except LookupFailure as failure:
            outcomes = [failure] * len(entries)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            if isinstance(error, grpc.RpcError) and is_too_big(from_rpc_error(error), entries):
                return False
            for entry in entries:
                entry.fail(error)
            return True
        for entry, outcome in zip(entries, outcomes, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(outcome)
        return True

    def _over(self, task: asyncio.Task[None]) -> None:
        self._turn.end()
        for entry in self._entries:
            # Its channel was closed under the call; a Get would have been cancelled likewise.
            entry.answer.cancel()
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("defect in a coalesced call", exc_info=defect)
