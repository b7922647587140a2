"""How many requests may be under way at the same time, and how long their bodies may take.

A request has a place while something is done for it. It has none while it waits for its body: a client that sends none
would keep others out. Requests that wait for a body have places of their own; newcomers take those of the longest
waiting.
`/healthz` needs no place: a process that is full is alive.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statehouse.errors import LookupFailure, Reason
from statehouse.observability.line_limit import LineLimit
from statehouse.runtime.address_limits import AddressLimit, Bound, WaitingLimit
from statehouse.settings import WebSettings
from statehouse.web.api.api_request import json_response
from statehouse.web.api.problems import HttpRefusal, problem_of
from statehouse.web.metrics import BodyFailure, WebMetrics

log = structlog.get_logger(__name__)

PROBE: Final = "/healthz"
"""Whether the process answers: asked by whatever HTTP a probe speaks."""
BODY_WITHIN_S: Final = 10.0
"""So long a request's body may take, from the moment it is asked for."""
_EVENTS: Final = "text/event-stream"
_LINES_AT_ONCE, _LINES_PER_S = 5, 1.0


class RequestLimit:
    """Refuses requests beyond `http_max_requests`. A stream of events has a place elsewhere: `Gateway.watch_place`."""

    def __init__(self, app: ASGIApp, settings: WebSettings, metrics: WebMetrics) -> None:
        self._app, self._most, self._metrics = app, settings.http_max_requests, metrics
        self._body_bytes_max = settings.http_max_body_bytes
        self._places = AddressLimit(self._most, settings.http_max_requests_per_address)
        self._bodies = WaitingLimit(self._most)
        self._waiting: dict[int, _Request] = {}
        self._numbers = itertools.count()
        self._lines = LineLimit(_LINES_AT_ONCE, _LINES_PER_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, if there is a place."""
        if scope["type"] != "http" or scope["path"] == PROBE:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        request = _Request(self, "" if client is None else client[0], self._body_bytes_max, receive, send)
        try:
            request.enter()
        except LookupFailure as failure:
            body = problem_of(failure)
            await json_response(body, body["status"])(scope, receive, send)
            return
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            request.end()

    def enter(self, address: str) -> None:
        """Take a place.

        Raises:
            LookupFailure: OVERLOADED.

        """
        bound = self._places.enter(address)
        if bound is None:
            return
        words = f"{self._most} requests are under way, as many as may be"
        if bound is Bound.ADDRESS:
            words = "as many requests of this address are under way as may be: http_max_requests_per_address"
        raise LookupFailure(Reason.OVERLOADED, words)

    def leave(self, address: str) -> None:
        """Give a place back."""
        self._places.leave(address)

    def begin_to_wait(self, request: _Request) -> int:
        """Take a place for a request that waits for its body; return its number."""
        number = next(self._numbers)
        self._waiting[number] = request
        loser = self._bodies.enter(number, request.address)
        if loser is not None:
            self._waiting.pop(loser).displace()
        return number

    def end_waiting(self, number: int) -> None:
        """Give that place back."""
        self._waiting.pop(number, None)
        self._bodies.leave(number)

    def unfinished(self, why: BodyFailure, address: str) -> None:
        """Note that a request's body did not come to its end: a number, and a line if there are not too many."""
        self._metrics.unfinished(why)
        if self._lines.take(time.monotonic()):
            log.info("a request was not sent to its end", why=why, address=address, left_out=self._lines.left_out)
            self._lines.left_out = 0


class _Request:
    """One request: its place, and its body."""

    def __init__(self, of: RequestLimit, address: str, most_bytes: int, receive: Receive, send: Send) -> None:
        self.address = address
        self._of, self._most_bytes, self._receive, self._send = of, most_bytes, receive, send
        self._has_place = self._is_whole = self._is_answered = self._is_displaced = False
        self._bytes = 0
        self._number: int | None = None
        self._until: float | None = None
        self._limit: asyncio.Timeout | None = None

    def enter(self) -> None:
        """Take a place; raises as `RequestLimit.enter`."""
        self._of.enter(self.address)
        self._has_place = True

    def displace(self) -> None:
        """Give the place of the body to somebody else."""
        self._is_displaced = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def end(self) -> None:
        """Give all places back."""
        self._leave()
        self._end_waiting()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; a stream of events needs no place from there on."""
        if message["type"] == "http.response.start":
            self._is_answered = True
            self._end_waiting()
            if Headers(raw=message["headers"]).get("content-type", "").startswith(_EVENTS):
                self._leave()
        await self._send(message)

    async def receive(self) -> Message:
        """Return the next part of the body, or that the caller has left.

        Raises:
            HttpRefusal: 408, it takes too long; 413, it is too large.
            LookupFailure: OVERLOADED, others need the place.

        """
        if self._is_whole or self._is_answered:
            return await self._receive()
        self._leave()
        message = await self._part()
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._most_bytes:
            raise HttpRefusal(413, f"the body has more than {self._most_bytes} bytes: ask for less at a time")
        if message["type"] == "http.disconnect":
            self._of.unfinished(BodyFailure.LEFT, self.address)
        elif message.get("more_body", False):
            return message
        else:
            self.enter()
        self._is_whole = True
        self._end_waiting()
        return message

    async def _part(self) -> Message:
        if self._number is None or self._until is None:
            self._number = self._of.begin_to_wait(self)
            self._until = asyncio.get_running_loop().time() + BODY_WITHIN_S
        try:
            # A request that was displaced between two parts has no time left.
            async with asyncio.timeout_at(0.0 if self._is_displaced else self._until) as self._limit:
                return await self._receive()
        except TimeoutError:
            self._of.unfinished(BodyFailure.DISPLACED if self._is_displaced else BodyFailure.LATE, self.address)
            if self._is_displaced:
                words = "too many requests wait for their bodies, and this one has for longest: send it at once"
                raise LookupFailure(Reason.OVERLOADED, words) from None
            raise HttpRefusal(408, f"the body did not come within {BODY_WITHIN_S:g} s: send it at once") from None
        finally:
            self._limit = None

    def _end_waiting(self) -> None:
        if self._number is not None:
            self._of.end_waiting(self._number)

    def _leave(self) -> None:
        if self._has_place:
            self._has_place = False
            self._of.leave(self.address)
