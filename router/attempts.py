"""One call to one node, and what it shows of the node: that it is well, slow, silent or down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import grpc
import grpc.aio

from router.health import NodeHealth
from router.lateness import Kind, Lateness
from router.table import Node
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.failures import from_rpc_error

Outcome = bytes | LookupFailure
Ask = Callable[[Node, str, bytes, float], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for a node.

    Attributes:
        deadline: it is not waited for any longer than that.
        timeout_s: from then on it may be given up, and `may_give_up` is asked whether to, each time this long has
            passed. The answer may be on its way, and asking somebody else is one more call.
        is_lenient: the time is so short that running out of it is not held against the node.

    """

    deadline: Deadline
    timeout_s: float
    may_give_up: Callable[[], bool]
    is_lenient: bool = False


class _Overtime:
    """Ends a call's `timeout` once its time has passed and it may be given up; until then says that it is overdue."""

    def __init__(self, timeout: asyncio.Timeout, limits: Limits, on_overdue: Callable[[], None]) -> None:
        self._timeout, self._limits, self._on_overdue = timeout, limits, on_overdue
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._handle = self._loop.call_later(self._limits.timeout_s, self._overdue)

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()

    def _overdue(self) -> None:
        self._on_overdue()
        if self._limits.may_give_up():
            self._timeout.reschedule(self._loop.time())
        else:
            self._handle = self._loop.call_later(self._limits.timeout_s, self._overdue)


class Attempts:
    """Makes calls and remembers what they show. Lives on the event loop.

    `ask(node, method, body, timeout_s)` makes a call and returns the answer; a refusal of the node's is returned or
    raised as the `grpc.RpcError` that carries it.
    """

    def __init__(self, ask: Ask, health: NodeHealth, lateness: Lateness) -> None:
        self._ask, self.health, self.lateness = ask, health, lateness

    async def make(self, node: Node, method: str, body: bytes, limits: Limits, *, kind: Kind | None) -> Outcome:
        """Make one call; return its answer or why there is none.

        `kind`: what it is measured as, None for calls that may take any time.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            async with asyncio.timeout(None) as timeout:
                with _Overtime(timeout, limits, partial(self._overdue, node, limits, started_at)):
                    outcome = await self._ask(node, method, body, limits.deadline.remaining_s)
        except TimeoutError:
            return LookupFailure(Reason.ATTEMPT_TIMED_OUT, f"no answer in {(loop.time() - started_at) * 1_000:.0f} ms")
        except grpc.RpcError as error:
            return self._failed(node, from_rpc_error(error), limits, started_at)
        except grpc.aio.UsageError as error:
            return LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The call was cancelled, not we: its channel was closed under it.
            return LookupFailure(Reason.UNREACHABLE, "the connection was closed")
        took_s = loop.time() - started_at
        self.health.answered(node, took_s)
        if kind is not None and isinstance(outcome, bytes) and self.lateness.answered(kind, node.instance_id, took_s):
            self._slow(node, kind)
        return outcome

    def overtaken(self, node: Node, kind: Kind, waited_s: float) -> None:
        """Note that a hedge answered before this node, whose call has been given up. It may be slow; it isn't dead."""
        if self.lateness.overtaken(kind, node.instance_id, waited_s):
            self._slow(node, kind)

    def _failed(self, node: Node, failure: LookupFailure, limits: Limits, started_at: float) -> LookupFailure:
        """Return the failure, having noted what it shows."""
        if "grpc_status" not in failure.metadata:
            # A refusal with our details is the node's own.
            self.health.answered(node, asyncio.get_running_loop().time() - started_at)
        elif failure.reason is Reason.ATTEMPT_TIMED_OUT:
            self._overdue(node, limits, started_at)
        else:
            self.health.failed(node, failure.reason, failure.message, started_at)
        return failure

    def _overdue(self, node: Node, limits: Limits, started_at: float) -> None:
        if not limits.is_lenient:
            detail = f"no answer in {limits.timeout_s * 1_000:.0f} ms"
            self.health.failed(node, Reason.ATTEMPT_TIMED_OUT, detail, started_at)

    def _slow(self, node: Node, kind: Kind) -> None:
        self.health.slow(node, self.lateness.late_after_s(kind))
