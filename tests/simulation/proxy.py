"""A simulated router's proxy: the pure function `decided` is the express way.

It stands in for the link and for the program behind it: it acts on the newest snapshot that has reached it, for as long
as the router says that it holds, and hands over what doesn't go well. Real: `ExpressWay`, which talks to it, the
snapshots, and the rules by which lookups share a call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
from google.rpc import code_pb2, status_pb2

from router.calls.coalesce import Coalescer
from router.choice.express import Decided, decided
from router.fleet.table import RoutedNode
from router.telemetry.metrics import RouterMetrics
from statehouse.control.v1.express_pb2 import ExpressSnapshot, ExpressSums
from statehouse.errors import LookupFailure
from statehouse.link.handed import Came, HandedLookup
from statehouse.link.link import CallFailed, ToProxy
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2
from tests.simulation.world import World

# As dataplane/express.go and dataplane/sums.go have them.
SNAPSHOT_HOLDS_S: Final = 3.0
_SHARE_OF_TIME: Final = 2
_SUMS_EVERY_S: Final = 0.1
_ON_THE_LINK_S: Final = (0.0001, 0.002)
# Between frames on the link: as close together as they can be, and in their order.
_NEXT_S: Final = 1e-6
_UNKNOWN_SHARE: Final = 0.05
_MICROSECONDS: Final = 1_000_000

NodeCall = Callable[[RoutedNode, str, bytes, float], Awaitable[bytes]]
"""Makes one call."""

Outcome = bytes | LookupFailure | grpc.RpcError | None
"""What comes of a lookup at a node; None: nothing is known of it."""

HandOver = Callable[[bytes, Deadline, HandedLookup | None], Awaitable[bytes]]
"""Has the router answer a lookup, of which a node may have been asked already."""


class SimulatedProxy:
    """Sends plain lookups of one router to nodes. `delay_s`: how much later than usual it hears from the router."""

    def __init__(self, world: World, name: str, call: NodeCall, hand_over: HandOver, max_message_bytes: int) -> None:
        self._world, self._hand_over = world, hand_over
        # Its own: runs without the express way are the same with it and without.
        self._rng = random.Random(f"proxy {name} of {world.seed}")
        self._coalescer = Coalescer(call, RouterMetrics(), max_message_bytes=max_message_bytes)
        self._snapshot = ExpressSnapshot()
        self._holds_until = self._heard_at = float("-inf")
        self._times_s: dict[tuple[str, str, int], list[float]] = {}
        self.delay_s = 0.0
        self.on_sums: Callable[[bytes], None] = lambda _sums: None

    # What the router sends, as over the link.

    def send(self, kind: ToProxy, number: int = 0, content: bytes = b"") -> None:
        """Take a frame, some time later, and after those that were sent before."""
        self._heard_at = max(self._world.now + self._on_the_link_s() + self.delay_s, self._heard_at + _NEXT_S)
        self._world.loop.call_at(self._heard_at, self._take, kind, number, content)

    def _take(self, kind: ToProxy, number: int, content: bytes) -> None:
        if kind is ToProxy.ROUTES:
            self._snapshot = ExpressSnapshot.FromString(content)
        if kind is ToProxy.ROUTES or number == self._snapshot.number:
            self._holds_until = self._world.now + SNAPSHOT_HOLDS_S

    # Lookups.

    async def get(self, request: bytes, timeout_s: float) -> bytes:
        """Answer a serialized GetRequest: by a node, if the snapshot says by which, or by the router.

        Raises:
            LookupFailure: nobody could.

        """
        deadline, counts = Deadline.after(timeout_s), self._world.counts
        if self._world.now > self._holds_until:
            counts["express: no snapshot holds"] += 1
            return await self._hand_over(request, deadline, None)
        to = decided(self._snapshot, request)
        if not isinstance(to, Decided):
            counts[f"express: {to.kind.name}"] += 1
            return await self._hand_over(request, deadline, None)
        return await self._straight(to, request, deadline)

    async def _straight(self, to: Decided, request: bytes, deadline: Deadline) -> bytes:
        sent_at, late_after_s = self._world.now, self._late_after_s(to.store, deadline)
        asked: asyncio.Task[Outcome] = self._world.task(self._ask(to, request + self._snapshot.forwarding, deadline))
        await asyncio.wait((asked,), timeout=late_after_s)
        if asked.done() and isinstance(answer := asked.result(), bytes) and _is_for(to, answer):
            self._world.counts["express: answered"] += 1
            self._answered(to, self._world.now - sent_at)
            return answer
        came: Came = self._world.loop.create_future()
        self._world.counts["express: handed over, " + ("not answered" if asked.done() else "late")] += 1
        if asked.done():
            _settle(came, asked.result())
        handed = HandedLookup(to.node.instance_id, to.node.address, sent_at, came)
        by_router: asyncio.Task[bytes | LookupFailure] = self._world.task(self._by_router(request, deadline, handed))
        if not came.done():
            await asyncio.wait((asked, by_router), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                asked.cancel()
            else:
                _settle(came, outcome := asked.result())
                if isinstance(outcome, bytes) and not to.of_batch and not by_router.done():
                    self._world.counts["express: answered late"] += 1
                    return outcome  # the router learns of it, and nobody waits for what it says
        told = await by_router
        if isinstance(told, LookupFailure):
            raise told
        return told

    async def _ask(self, to: Decided, body: bytes, deadline: Deadline) -> Outcome:
        host, _, port = to.node.address.rpartition(":")
        node = RoutedNode(to.node.instance_id, host, int(port))
        outcome: Outcome
        try:
            outcome = await self._coalescer.ask(node, "Get", body, deadline.remaining_s)
        except grpc.RpcError as error:
            outcome = error
        except TimeoutError:
            outcome = CallFailed(status_pb2.Status(code=code_pb2.DEADLINE_EXCEEDED, message="no answer in time"))
        is_bad = not isinstance(outcome, bytes)
        return None if is_bad and self._rng.random() < _UNKNOWN_SHARE else outcome

    async def _by_router(self, request: bytes, deadline: Deadline, handed: HandedLookup) -> bytes | LookupFailure:
        await asyncio.sleep(self._on_the_link_s())
        try:
            return await self._hand_over(request, deadline, handed)
        except LookupFailure as failure:
            return failure

    def _late_after_s(self, name: str, deadline: Deadline) -> float:
        late_after_us = next(each.late_after_us for each in self._snapshot.stores if each.name == name)
        return min(late_after_us / _MICROSECONDS, deadline.remaining_s / _SHARE_OF_TIME)

    def _on_the_link_s(self) -> float:
        return self._rng.uniform(*_ON_THE_LINK_S)

    # What went well.

    def _answered(self, to: Decided, took_s: float) -> None:
        """Have the router hear of an answer, with others of the moment."""
        if not self._times_s:
            self._world.loop.call_later(_SUMS_EVERY_S, self._tell)
        self._times_s.setdefault((to.store, to.node.instance_id, to.node.role), []).append(took_s)

    def _tell(self) -> None:
        sums = ExpressSums()
        for (store, instance_id, role), times_s in self._times_s.items():
            took_us = [round(took_s * _MICROSECONDS) for took_s in times_s]
            sums.sums.add(store=store, instance_id=instance_id, role=role, count=len(times_s), took_us=took_us)
        self._times_s.clear()
        self._world.loop.call_later(self._on_the_link_s(), self._pass_on, sums.SerializeToString())

    def _pass_on(self, sums: bytes) -> None:
        self.on_sums(sums)


def _is_for(to: Decided, answer: bytes) -> bool:
    """Whether an answer is of a batch, if it is to be."""
    return not to.of_batch or query_service_pb2.GetResponse.FromString(answer).replica.HasField("moment")


def _settle(came: Came, outcome: Outcome) -> None:
    """Say what came of a lookup, unless the router has given it up."""
    if came.done():
        return
    if isinstance(outcome, grpc.RpcError):
        came.set_exception(outcome)
        came.exception()  # nobody may be left to ask for it
    else:
        came.set_result(outcome)
