"""Straight to the nodes: the fleet as the router tells of it, and a connection to each node that is needed.

One attempt, no more: what it can't answer goes through the router, which knows the standbys and has promises to keep.
So nothing here may cost a caller much. A node is only asked over a connection that stands already: where nodes can't be
reached, because clients are in another network, say, or while one is dead, no lookup waits for a connection. An attempt
has a bounded time, and a node or a copy that failed is left alone for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio

from statehouse.client.backoff import Backoff
from statehouse.client.batches import Outcome, batch_get
from statehouse.client.conversion import from_get
from statehouse.client.lanes import Lane, Lookup
from statehouse.client.peers import Peer, Stub
from statehouse.client.routes import Node, Routes
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2

log = logging.getLogger(__name__)

ATTEMPT_S: Final = 0.25
"""What a node has for its answer, as at routers (attempt_timeout_ms) …"""
ATTEMPT_PER_KEY_S: Final = 0.001
"""… and beside it for each key of a batch."""
# Missing less than that is not held against a node.
_LEAST_S: Final = 0.05
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

# What speaks against all that a node holds, and what against one task or copy.
_NODE_FAILURES: Final = frozenset(
    {
        Reason.UNREACHABLE,
        Reason.ATTEMPT_TIMED_OUT,
        Reason.OVERLOADED,
        Reason.NODE_SHUTTING_DOWN,
        Reason.ROUTING_NOT_READY,
        Reason.HOP_LIMIT,
    }
)
_HELD_FAILURES: Final = frozenset(
    {
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.TASK_FAILED,
        Reason.NOT_ACTIVE,
        Reason.ACTIVE_UNCONFIRMED,
        Reason.UNKNOWN_STORE,
    }
)

Response = TypeVar("Response")
Make = Callable[[Stub, float], Awaitable[Response]]
"""Makes a call that is given so many seconds."""


class Link:
    """A node: its channel, the lane of lookups to it, and whether it is left alone."""

    def __init__(self, node: Node, max_message_bytes: int) -> None:
        self.node, self._max_message_bytes = node, max_message_bytes
        self.lane = Lane(self._send, max_message_bytes)
        self._peer = Peer(node.target, max_message_bytes)
        self._left_alone: Backoff[str] = Backoff()  # by what it holds, "" for all of it

    def may_try(self, held_as: str) -> bool:
        """Whether to ask it about what it holds."""
        now_s = asyncio.get_running_loop().time()
        may_try = self._left_alone.may_try
        return self._peer.is_connected() and may_try("", now_s) and may_try(held_as, now_s)

    async def attempt(self, make: Make[Response], give_up_at: float, *, keys: int = 1) -> Response:
        """Make a call, within a bounded time of which half is left for the router.

        Raises:
            LookupFailure: it failed.

        """
        loop = asyncio.get_running_loop()
        seconds = min(ATTEMPT_S + keys * ATTEMPT_PER_KEY_S, max(0.0, give_up_at - loop.time()) / 2)
        try:
            response = await self._peer.call(make(self._peer.query, seconds))
        except LookupFailure as failure:
            is_late = failure.reason is Reason.ATTEMPT_TIMED_OUT
            if _is_nodes(failure) and not (is_late and seconds < _LEAST_S):
                log.debug("%s is left alone for now: %s", self.node, failure)
                self._left_alone.failed("", loop.time())
                self.lane.refuse_waiting(failure)
            raise
        self._left_alone.succeeded("")
        return response

    async def batch_get(self, requests: Sequence[query_service_pb2.GetRequest], give_up_at: float) -> list[Outcome]:
        """Look several keys up; return one outcome a key."""

        async def ask(batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
            keys = len(batch.requests)
            return await self.attempt(lambda query, s: query.BatchGet(batch, timeout=s), give_up_at, keys=keys)

        return await batch_get(requests, ask, self._max_message_bytes)

    def note(self, held_as: str, failure: LookupFailure | None) -> None:
        """Take what became of a lookup."""
        if failure is None:
            self._left_alone.succeeded(held_as)
        elif failure.reason in _HELD_FAILURES:
            self._left_alone.failed(held_as, asyncio.get_running_loop().time())

    def take_back(self) -> None:
        """Forget what was held against what it holds: it may be there now."""
        self._left_alone.retain(lambda held_as: held_as == "")

    async def close(self, grace_s: float) -> None:
        """End; calls under way may go on for so long."""
        await self._peer.close(grace_s)
        await self.lane.close()

    async def _send(self, lookups: Sequence[Lookup]) -> list[Outcome]:
        give_up_at = min(lookup.give_up_at for lookup in lookups)
        if len(lookups) > 1:
            return await self.batch_get([lookup.request for lookup in lookups], give_up_at)
        request = lookups[0].request
        try:
            response = await self.attempt(lambda query, s: query.Get(request, timeout=s), give_up_at)
        except LookupFailure as failure:
            return [failure]
        return [from_get(response, request.store)]


@dataclass(frozen=True, slots=True)
class Way:
    """Whom to ask about a key, and by which epoch."""

    link: Link
    held_as: str
    epoch: int

    async def get(self, request: query_service_pb2.GetRequest, give_up_at: float) -> Outcome:
        """Look the key up, together with others that are looked up at the same time."""
        request.forwarding.epoch = self.epoch
        outcome = await self.link.lane.ask(request, give_up_at)
        self.note(outcome)
        return outcome

    def note(self, outcome: Outcome) -> None:
        """Take what became of a lookup."""
        self.link.note(self.held_as, outcome if isinstance(outcome, LookupFailure) else None)


class Direct:
    """Knows the ways to the nodes. Lives on the event loop; follows the fleet from the first lookup on."""

    def __init__(self, router: Peer, max_message_bytes: int) -> None:
        self._router, self._max_message_bytes = router, max_message_bytes
        self._routes: Routes | None = None
        self._follower: asyncio.Task[None] | None = None
        self._links: dict[Node, Link] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._turns = itertools.count()

    def way(self, store: str, key: types_pb2.Key) -> Way | None:
        """Return the way to a key, None if the router is to be asked."""
        if self._follower is None:
            self._follower = asyncio.get_running_loop().create_task(self._follow())
        place = None if self._routes is None else self._routes.place(store, key)
        if place is None or self._routes is None:
            return None
        node = place.nodes[next(self._turns) % len(place.nodes)]
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(node, self._max_message_bytes)
        return Way(link, place.held_as, self._routes.epoch) if link.may_try(place.held_as) else None

    async def close(self) -> None:
        """End."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await asyncio.gather(*self._closing, *(link.close(0.0) for link in self._links.values()))

    async def _follow(self) -> None:
        """Take the fleet from the router, again and again, as long as the client is open.

        A router that has gone leaves what it told: nodes check what they are asked, so it may be old.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for response in self._router.fleet.WatchFleet(fleet_service_pb2.WatchFleetRequest()):
                    pause_s = _FIRST_PAUSE_S
                    self._take(Routes.of(response.fleet))
            except grpc.aio.UsageError:
                return  # the client was closed before
            except grpc.RpcError as error:
                log.debug("%s doesn't tell of the fleet: %s", self._router.target, error)
            # Not all clients of a router that restarts at one moment.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _take(self, routes: Routes) -> None:
        self._routes = routes
        for node in self._links.keys() - routes.nodes:
            task = asyncio.get_running_loop().create_task(self._links.pop(node).close(ATTEMPT_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for link in self._links.values():
            link.take_back()


def may_help_elsewhere(failure: LookupFailure) -> bool:
    """Whether the router may do better than the node that failed so."""
    # The client has found the store in its table: a node that does not know it is an epoch behind.
    return failure.elsewhere or failure.reason in {Reason.UNKNOWN_STORE, Reason.HOP_LIMIT}


def _is_nodes(failure: LookupFailure) -> bool:
    """Whether a failed call speaks against the node, whatever it was about."""
    # INTERNAL without a word of ours: no node of ours listens there.
    is_foreign = failure.reason is Reason.INTERNAL and "grpc_status" in failure.metadata
    return failure.reason in _NODE_FAILURES or is_foreign
