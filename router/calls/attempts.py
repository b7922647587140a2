"""One call to one node, and what its outcome says about the node: it is well, slow, silent or down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
import grpc.aio

from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes, CallKind
from router.fleet.table import RoutedNode
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.failures import from_rpc_error, is_servers
from statehouse.runtime.waiting import is_told_to_end

CallOutcome = bytes | LookupFailure
# A router whose event loop is so late gets to answers late, too. What it finds then is so for a while.
_BEHIND_S: Final = 0.05
_BEHIND_FOR_S: Final = 1.0

AskNode = Callable[[RoutedNode, str, bytes, float], Awaitable[CallOutcome]]


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How long to wait for a node.

    Attributes:
        deadline: the router waits no longer than this.
        timeout_s: each time this many seconds have passed, `may_give_up` decides whether to give the call up. The
            answer may be on its way, and asking another node is one more call.
        is_lenient: the time is so short that a timeout does not count against the node.

    """

    deadline: Deadline
    timeout_s: float
    may_give_up: Callable[[], bool]
    is_lenient: bool = False


class _Overtime:
    """Reports a call overdue each time its time has passed, and ends its `timeout` once it may be given up.

    `is_overdue(late_s)` is called so many seconds after that time. It returns whether the node is late, and not we.
    """

    def __init__(self, timeout: asyncio.Timeout, limits: AttemptLimits, is_overdue: Callable[[float], bool]) -> None:
        self._timeout, self._limits, self._is_overdue = timeout, limits, is_overdue
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._wait()

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        self._due_at = self._loop.time() + self._limits.timeout_s
        self._handle = self._loop.call_at(self._due_at, self._overdue)

    def _overdue(self) -> None:
        if self._is_overdue(self._loop.time() - self._due_at) and self._limits.may_give_up():
            self._timeout.reschedule(self._loop.time())
        else:
            self._wait()


class Attempts:
    """Makes calls and notes what they say about the nodes. Lives on the event loop.

    While the router itself is behind, it says nothing about a node that an answer is late, unless nothing has come from
    the node since: one that is suspected costs more work, and the router would never catch up.

    `ask(node, method, body, timeout_s)` makes a call and returns the answer. If the node refuses, it returns the
    refusal or raises it as a `grpc.RpcError`.
    """

    def __init__(self, ask: AskNode, health: NodeHealth, answer_times: AnswerTimes) -> None:
        self._ask, self.health, self.answer_times = ask, health, answer_times
        self._behind_until = -math.inf

    async def make(
        self,
        node: RoutedNode,
        method: str,
        body: bytes,
        limits: AttemptLimits,
        *,
        kind: CallKind | None,
        handed: HandedLookup | None = None,
    ) -> CallOutcome:
        """Make one call; return its answer or why there is none.

        `kind`: the kind of call for the answer times; None for calls that may take any time. `handed`: the call was
        made already.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time() if handed is None else handed.sent_at
        try:
            async with asyncio.timeout(None) as timeout:
                with _Overtime(timeout, limits, partial(self._is_overdue, node, limits, started_at)):
                    outcome = None if handed is None else await _outcome_of(handed)
                    if outcome is None:
                        outcome = await self._ask(node, method, body, limits.deadline.remaining_s)
        except TimeoutError:
            return LookupFailure(Reason.ATTEMPT_TIMED_OUT, f"no answer in {(loop.time() - started_at) * 1_000:.0f} ms")
        except grpc.RpcError as error:
            return self._failed(node, from_rpc_error(error), limits, started_at)
        except grpc.aio.UsageError as error:
            return LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}")
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            # Our task was not cancelled, the call was: its channel was closed.
            return LookupFailure(Reason.UNREACHABLE, "the connection was closed")
        took_s = loop.time() - started_at
        if handed is not None and handed.took_s is not None:
            took_s = handed.took_s  # what the router has done since then says nothing about the node
        self.health.answered(node, took_s)
        if (
            kind is not None
            and isinstance(outcome, bytes)
            and self.answer_times.answered(kind, node.instance_id, took_s)
        ):
            self._slow(node, kind)
        return outcome

    def overtaken(self, node: RoutedNode, kind: CallKind, waited_s: float) -> None:
        """Note that a hedge answered first and this node's call was given up. The node may be slow; it is not dead."""
        if self.answer_times.overtaken(kind, node.instance_id, waited_s):
            self._slow(node, kind)

    def _failed(
        self, node: RoutedNode, failure: LookupFailure, limits: AttemptLimits, started_at: float
    ) -> LookupFailure:
        """Note what a failed call says about the node; return the failure."""
        if is_servers(failure):
            self.health.answered(node, asyncio.get_running_loop().time() - started_at)
        elif failure.reason is Reason.ATTEMPT_TIMED_OUT:
            self._is_overdue(node, limits, started_at, 0.0)
        else:
            self.health.failed(node, failure.reason, failure.message, started_at)
        return failure

    def _is_overdue(self, node: RoutedNode, limits: AttemptLimits, started_at: float, late_s: float) -> bool:
        """Note that a call's time has passed, and was noticed `late_s` later. Return whether the node is late."""
        if late_s > _BEHIND_S:
            self._behind_until = asyncio.get_running_loop().time() + _BEHIND_FOR_S
        if self._is_behind() and self.health.has_answered_since(node, started_at):
            return False
        if not limits.is_lenient:
            detail = f"no answer in {limits.timeout_s * 1_000:.0f} ms"
            self.health.failed(node, Reason.ATTEMPT_TIMED_OUT, detail, started_at)
        return True

    def _is_behind(self) -> bool:
        return asyncio.get_running_loop().time() < self._behind_until

    def _slow(self, node: RoutedNode, kind: CallKind) -> None:
        if not self._is_behind():
            self.health.slow(node, self.answer_times.late_after_s(kind))


async def _outcome_of(handed: HandedLookup) -> CallOutcome | None:
    """Return what came of a lookup at its node; None if it must be asked by a call of its own."""
    outcome = await handed.came
    if isinstance(outcome, LookupFailure) and outcome.reason is Reason.WOULD_WAIT:
        return None
    return outcome
