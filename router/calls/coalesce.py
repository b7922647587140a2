"""Coalescing: lookups that come during a call to their node go out together afterwards, as one BatchGet.

A call costs a node and the router many times as much as a lookup in it. So while a call to a node is under way, further
lookups wait for its return, and then go together. If no call is under way, a lookup goes immediately, as a Get:
where waiting gains nothing, no lookup waits.

Each lookup behaves as if it were alone: it has its own answer or refusal and its own deadline, and ends when its caller
leaves. A call makes others wait for a moment only: a frozen node, or a lookup that waits for a position, must not hold
up the rest. So the number of calls to a node has no bound of its own, but each call has a waiting caller, and
`max_lookups` bounds these.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc
import grpc.aio

from router.calls.attempts import CallOutcome
from router.calls.batch_calls import halving, outcome_in, results, room_of_call
from router.fleet.table import RoutedNode
from router.telemetry.metrics import RouterMetrics
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.batches import fitting, is_too_big
from statehouse.serdes.wire import framed

SendCall = Callable[[RoutedNode, str, bytes, float], Awaitable[bytes]]

# Calls to a node under way before lookups begin to wait. With two, fewer lookups shared calls and nodes needed more
# processor time for each, without more lookups per second.
_AT_ONCE: Final = 1
# How long a call may make others wait.
_LONGEST_WAIT_S: Final = 0.01


class _QueuedLookup:
    """A lookup that shares a call. `answer` is its outcome, `expires_at` its deadline in loop time (seconds)."""

    __slots__ = ("answer", "batch", "body", "expires_at", "node")

    def __init__(self, node: RoutedNode, body: bytes, expires_at: float, answer: asyncio.Future[CallOutcome]) -> None:
        self.node, self.body, self.expires_at, self.answer = node, body, expires_at, answer
        self.batch: _Batch | None = None

    def fail(self, error: Exception) -> None:
        """Raise an error for the caller, unless they have an answer or have left."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Coalescer:
    """Calls a node's QueryService; Gets share calls where possible. Lives on the event loop.

    `send(node, method, body, timeout_s)` makes one call.
    """

    def __init__(self, send: SendCall, metrics: RouterMetrics, *, max_message_bytes: int) -> None:
        self.send, self.metrics, self.max_message_bytes = send, metrics, max_message_bytes
        self.background = BackgroundWork()
        self.queues: dict[str, _NodeQueue] = {}
        """The nodes with calls under way, by address."""

    async def ask(self, node: RoutedNode, method: str, body: bytes, timeout_s: float) -> CallOutcome:
        """Call a method; return the answer, or the node's refusal of a lookup that shared a call.

        Raises:
            grpc.RpcError: the call failed; a shared call failed as a whole.
            grpc.aio.UsageError: the channel was closed at this moment.
            TimeoutError: the time is up.

        """
        if method != "Get":
            return await self.send(node, method, body, timeout_s)
        queue = self.queues.get(node.target)
        if queue is None:
            queue = self.queues[node.target] = _NodeQueue(self, node.target)
        if queue.has_room:
            call = _CallUnderWay(queue)
            try:
                return await self.send(node, method, body, timeout_s)
            finally:
                call.end()
        loop = asyncio.get_running_loop()
        entry = _QueuedLookup(node, body, loop.time() + timeout_s, loop.create_future())
        outcome = await queue.take_along(entry)
        if isinstance(outcome, LookupFailure) and outcome.reason is Reason.WOULD_WAIT:
            return await self.send(node, method, body, max(0.0, entry.expires_at - loop.time()))
        return outcome


class _NodeQueue:
    """The calls under way to one address, and the lookups that wait for them."""

    def __init__(self, owner: Coalescer, target: str) -> None:
        self.owner = owner
        self._target = target
        self._under_way = 0
        self._waiting: dict[_QueuedLookup, None] = {}

    @property
    def has_room(self) -> bool:
        """Whether a call may be made immediately; then no lookup is waiting."""
        return self._under_way < _AT_ONCE

    async def take_along(self, entry: _QueuedLookup) -> CallOutcome:
        """Return the outcome of a lookup that goes with the next batch."""
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
        self._under_way += 1

    def end(self) -> None:
        """Note that a call no longer counts, and send the lookups that waited for it."""
        self._under_way -= 1
        while self._waiting and self.has_room:
            room = room_of_call(self.owner.max_message_bytes)
            count = fitting((len(entry.body) for entry in self._waiting), room)
            entries = list(itertools.islice(self._waiting, count))
            for entry in entries:
                del self._waiting[entry]
            _Batch(self, entries)
        if not self._under_way:
            del self.owner.queues[self._target]


class _CallUnderWay:
    """One call under way: others wait until it ends, but only for a moment."""

    def __init__(self, queue: _NodeQueue) -> None:
        self._queue: _NodeQueue | None = queue
        self._timer = asyncio.get_running_loop().call_later(_LONGEST_WAIT_S, self.end)
        queue.begin()

    def end(self) -> None:
        """Let the waiting lookups go."""
        if self._queue is not None:
            queue, self._queue = self._queue, None
            self._timer.cancel()
            queue.end()


class _Batch:
    """Lookups that share a call; it ends early when all their callers have left."""

    def __init__(self, queue: _NodeQueue, entries: Sequence[_QueuedLookup]) -> None:
        self._owner, self._entries, self._callers = queue.owner, entries, len(entries)
        for entry in entries:
            entry.batch = self
        self._call_under_way = _CallUnderWay(queue)
        self._task = self._owner.background.start(halving(self._call, entries), "coalesced call")
        self._task.add_done_callback(self._over)

    def left(self) -> None:
        """Note that a caller stopped waiting, answered or not."""
        self._callers -= 1
        if not self._callers:
            self._task.cancel()

    async def _call(self, entries: Sequence[_QueuedLookup]) -> bool:
        """Make one call and give each entry its outcome; False if it was too big."""
        entries = [entry for entry in entries if not entry.answer.done()]
        if not entries:
            return True
        # The newest lookup knows best which process is at the address.
        node = entries[-1].node
        timeout_s = max(0.0, max(entry.expires_at for entry in entries) - asyncio.get_running_loop().time())
        try:
            if len(entries) == 1:
                outcomes: Sequence[CallOutcome] = [await self._owner.send(node, "Get", entries[0].body, timeout_s)]
            else:
                self._owner.metrics.coalesced(len(entries))
                body = framed(entry.body for entry in entries)
                answer = await self._owner.send(node, "BatchGet", body, timeout_s)
                outcomes = [outcome_in(result) for result in results(answer, len(entries))]
        except LookupFailure as failure:
            outcomes = [failure] * len(entries)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            if isinstance(error, grpc.RpcError) and is_too_big(from_rpc_error(error), len(entries)):
                return False
            for entry in entries:
                entry.fail(error)
            return True
        for entry, outcome in zip(entries, outcomes, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(outcome)
        return True

    def _over(self, _task: asyncio.Task[None]) -> None:
        self._call_under_way.end()
        for entry in self._entries:
            # The call's channel was closed; a Get would have been cancelled in the same way.
            entry.answer.cancel()
