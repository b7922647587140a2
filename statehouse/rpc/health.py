"""Health checks (grpc.health.v1): whether a server serves, for who asks and for who watches.

Not with grpcio's own servicer: it holds a lock while it tells a watcher, so that one who takes nothing keeps all others
from learning of a change, and the server from stopping. And it has no bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.status import Context, failing_cleanly, send_to
from statehouse.rpc.streams import StreamLimit

LIVENESS: Final = "liveness"
"""The name to ask for whether the process works at all: SERVING for as long as it answers."""
READINESS: Final = "readiness"
"""The name to ask for whether the process has all that it needs: before a balancer sends calls to it, and before the
next one of a fleet is restarted."""

_WATCHES_MAX: Final = 1_000
"""Watches of the health that are open at the same time: each of our clients has none, and balancers have one each."""
_REQUEST_MAX_BYTES: Final = 4 * 1024
"""Names of services are shorter. A request stays in memory for as long as its stream is open."""


def refuse_long(request: Message) -> None:
    """Return if a request to a side service is short.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if request.ByteSize() > _REQUEST_MAX_BYTES:
        raise LookupFailure(Reason.INVALID_REQUEST, f"the request has more than {_REQUEST_MAX_BYTES} bytes")


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # it has no types
    """The health of a server and its services: the same for all, NOT_SERVING at first. Lives on the event loop.

    In addition it has READINESS, NOT_SERVING at first, and LIVENESS. `watches`: the places for watches.
    """

    def __init__(self, services: Sequence[str]) -> None:
        kinds = health_pb2.HealthCheckResponse
        self._statuses: dict[str, int] = dict.fromkeys(("", *services, READINESS), kinds.NOT_SERVING)
        self._statuses[LIVENESS] = kinds.SERVING
        # A new one for each change: a slow watcher misses those in between.
        self._changed = asyncio.Event()
        self._has_ended = False
        self.watches = StreamLimit(_WATCHES_MAX, "watches of the health")

    def set(self, *, serving: bool, ready: bool) -> None:
        """Set the answers, unless `end` was called; of several calls the latest counts. Call this on the event loop.

        `serving`: whether there is anything to serve. `ready`: whether all that there should be is there.
        """
        if self._has_ended:
            return
        kinds = health_pb2.HealthCheckResponse
        words = {True: kinds.SERVING, False: kinds.NOT_SERVING}
        told = {name: words[ready if name == READINESS else serving] for name in self._statuses if name != LIVENESS}
        if told.items() <= self._statuses.items():
            return
        self._statuses |= told
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Tell that the server is about to serve no more. While it answers it is alive all the same."""
        self.set(serving=False, ready=False)
        self._has_ended = True

    async def _check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        refuse_long(request)
        if request.service not in self._statuses:
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return self._of(request.service)

    async def _list(self, _request: health_pb2.HealthListRequest, _context: Context) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(statuses={name: self._of(name) for name in self._statuses})

    async def _watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        refuse_long(request)
        send, told = send_to(context), None
        with self.watches.place():
            while True:
                changed, answer = self._changed, self._of(request.service)
                if answer != told:
                    await send(answer)
                    told = answer
                await changed.wait()

    def _of(self, name: str) -> health_pb2.HealthCheckResponse:
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse(status=self._statuses.get(name, unknown))

    Check = failing_cleanly(_check)
    List = failing_cleanly(_list)
    Watch = failing_cleanly(_watch)
