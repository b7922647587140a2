"""Lookups straight at the nodes: follows the router's description of the fleet, and connects to the nodes it needs.

A lookup makes one attempt here; if that fails, it goes through the router, which knows the standbys and keeps the
freshness promises. So an attempt must be cheap. It uses only connections that are already open: if clients can't
reach the nodes' network, or a node is dead, no lookup waits for a connection. An attempt has a bounded time, and a
node or copy that failed is not asked for a while.
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

from statehouse.client.batches import LookupOutcome, batch_get
from statehouse.client.breakers import CircuitBreakers
from statehouse.client.conversion import from_get
from statehouse.client.keys import KeyForm
from statehouse.client.lookup_queue import LookupQueue, QueuedLookup
from statehouse.client.peers import Peer, Stub
from statehouse.client.routers import Routers
from statehouse.client.routes import FleetRoutes, NodeIncarnation
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.credentials import CredentialFiles
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.v1 import query_service_pb2, types_pb2

log = logging.getLogger(__name__)

ATTEMPT_S: Final = 0.25
"""Seconds that a node has to answer, the default of routers' attempt_timeout_ms …"""
ATTEMPT_PER_KEY_S: Final = 0.001
"""… plus this for each key of a batch."""
# A timeout shorter than this does not count against a node.
_LEAST_S: Final = 0.05
_FOLLOW: Final = BackoffPolicy("follow_fleet", first_s=0.1, longest_s=5.0)

# Failures that count against the whole node, and failures that count against one task or copy.
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
_TASK_FAILURES: Final = frozenset(
    {
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.TASK_FAILED,
        Reason.NOT_ACTIVE,
        Reason.ACTIVE_UNCONFIRMED,
        Reason.UNKNOWN_STORE,
        Reason.KEYS_MISPLACED,  # routers ask all partitions
        # The node is well, but its rules let this client in only through a router, or not at all.
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    }
)

Response = TypeVar("Response")
Make = Callable[[Stub, float], Awaitable[Response]]
"""Makes a call with a timeout in seconds."""


class NodeConnection:
    """A node: its channel, its queue of lookups, and whether it may be asked."""

    def __init__(self, node: NodeIncarnation, max_message_bytes: int, files: CredentialFiles | None = None) -> None:
        self.node, self._max_message_bytes = node, max_message_bytes
        self.queue = LookupQueue(self._send, max_message_bytes)
        self._peer = Peer(node.target, max_message_bytes, files)
        self._left_alone = CircuitBreakers()  # by task or global store; "" is the whole node

    def may_try(self, task: str) -> bool:
        """Whether to ask the node about this task or global store."""
        now_s = asyncio.get_running_loop().time()
        may_try = self._left_alone.may_try
        return self._peer.is_connected() and may_try("", now_s) and may_try(task, now_s)

    async def attempt(self, make: Make[Response], give_up_at: float, *, keys: int = 1) -> Response:
        """Make a call within a bounded time; at least half of the caller's time is left for the router.

        Raises:
            LookupFailure: it failed.

        """
        loop = asyncio.get_running_loop()
        seconds = min(ATTEMPT_S + keys * ATTEMPT_PER_KEY_S, max(0.0, give_up_at - loop.time()) / 2)
        try:
            response = await self._peer.call(_made(make, self._peer.query, seconds))
        except LookupFailure as failure:
            is_late = failure.reason is Reason.ATTEMPT_TIMED_OUT
            if _is_nodes(failure) and not (is_late and seconds < _LEAST_S):
                log.debug("%s is not asked for now: %s", self.node, failure)
                self._left_alone.failed("", loop.time())
                self.queue.refuse_waiting(failure)
            raise
        self._left_alone.succeeded("")
        return response

    async def batch_get(
        self, requests: Sequence[query_service_pb2.GetRequest], give_up_at: float
    ) -> list[LookupOutcome]:
        """Look several keys up; return one outcome per key."""

        async def ask(batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
            keys = len(batch.requests)
            return await self.attempt(lambda query, s: query.BatchGet(batch, timeout=s), give_up_at, keys=keys)

        return await batch_get(requests, ask, self._max_message_bytes)

    def note(self, task: str, failure: LookupFailure | None) -> None:
        """Note a lookup's outcome."""
        if failure is None:
            self._left_alone.succeeded(task)
        elif failure.reason in _TASK_FAILURES:
            self._left_alone.failed(task, asyncio.get_running_loop().time())

    def take_back(self) -> None:
        """Forget failures of its tasks and copies: it may have them now."""
        self._left_alone.retain(lambda task: task == "")

    async def close(self, grace_s: float) -> None:
        """End; calls under way may go on for `grace_s` seconds."""
        await self._peer.close(grace_s)
        await self.queue.close()

    async def _send(self, lookups: Sequence[QueuedLookup]) -> list[LookupOutcome]:
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
class ConnectedRoute:
    """The node to ask about a key, and the epoch of the assignment that named it."""

    connection: NodeConnection
    task: str
    epoch: int

    async def get(self, request: query_service_pb2.GetRequest, give_up_at: float) -> LookupOutcome:
        """Look the key up, in one call with other lookups made at the same time."""
        request.forwarding.epoch = self.epoch
        outcome = await self.connection.queue.ask(request, give_up_at)
        self.note(outcome)
        return outcome

    def note(self, outcome: LookupOutcome) -> None:
        """Note a lookup's outcome."""
        self.connection.note(self.task, outcome if isinstance(outcome, LookupFailure) else None)


class NodeConnections:
    """The connections to nodes, and the one to use for each key.

    Lives on the event loop; follows the fleet from the first lookup on.
    """

    def __init__(self, routers: Routers, max_message_bytes: int, files: CredentialFiles | None = None) -> None:
        self._routers, self._max_message_bytes, self._files = routers, max_message_bytes, files
        self._routes: FleetRoutes | None = None
        self._follower: asyncio.Task[None] | None = None
        self._connections: dict[NodeIncarnation, NodeConnection] = {}
        self._background = BackgroundWork()
        self._round_robin = itertools.count()

    def route(self, store: str, key: types_pb2.Key) -> ConnectedRoute | None:
        """Return the route to a key; None if the router must answer."""
        if self._follower is None:
            self._follower = self._background.start(self._follow(), "follow the fleet")
        route = None if self._routes is None else self._routes.route(store, key)
        if route is None or self._routes is None:
            return None
        node = route.nodes[next(self._round_robin) % len(route.nodes)]
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections[node] = NodeConnection(node, self._max_message_bytes, self._files)
        return ConnectedRoute(connection, route.task, self._routes.epoch) if connection.may_try(route.task) else None

    def key_form(self, store: str) -> KeyForm | None:
        """Return the form of a store's keys, as the fleet was last described; None if that has no such store."""
        return None if self._routes is None else self._routes.key_form(store)

    async def close(self) -> None:
        """End."""
        if self._follower is not None:
            self._follower.cancel()
        for connection in self._connections.values():
            self._background.start(connection.close(0.0), "close a connection")
        await self._background.finish()

    async def _follow(self) -> None:
        """Follow the router's description of the fleet while the client is open.

        If the router goes away, the last description stays in use: nodes check each request, so it may be old.
        """
        backoff = Backoff(_FOLLOW)
        while True:
            try:
                router = self._routers.current
                call = router.watch_fleet()
                try:
                    async for response in call:
                        self._take(FleetRoutes.of(response.fleet))
                        backoff.succeeded()
                finally:
                    call.cancel()
            except grpc.aio.UsageError:
                return  # the client was closed first
            except grpc.RpcError as error:
                log.debug("%s sends no description of the fleet: %s", router.target, error)
                self._routers.stream_failed(router, from_rpc_error(error))
            except Exception:
                log.exception("defect in following the fleet: its last description counts, and it is asked for again")
            # Random, so that a restarted router's clients don't all reconnect at one moment.
            await asyncio.sleep(backoff.failed() * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret

    def _take(self, routes: FleetRoutes) -> None:
        self._routes = routes
        for node in self._connections.keys() - routes.nodes:
            self._background.start(self._connections.pop(node).close(ATTEMPT_S), "close a connection")
        for connection in self._connections.values():
            connection.take_back()


async def _made(make: Make[Response], query: Stub, seconds: float) -> Response:
    """Make a call where it is awaited: gRPC refuses one on a channel that is being closed as soon as it is made."""
    return await make(query, seconds)


def may_help_elsewhere(failure: LookupFailure) -> bool:
    """Whether the router may succeed after this failure of a node."""
    # The client's table has the store, so a node that does not know it is an epoch behind. Where one partition proves
    # nothing, a router asks all of them.
    return failure.elsewhere or failure.reason in {Reason.UNKNOWN_STORE, Reason.HOP_LIMIT, Reason.KEYS_MISPLACED}


def _is_nodes(failure: LookupFailure) -> bool:
    """Whether the failure counts against the whole node."""
    # INTERNAL without our error details: the listener there is not one of our nodes.
    is_foreign = failure.reason is Reason.INTERNAL and "grpc_status" in failure.metadata
    return failure.reason in _NODE_FAILURES or is_foreign
