"""The routers that a client knows: a call goes on to the next one if a router fails, or waits for it to come back.

All calls of a client only read, so asking again does no harm. A router that is late may be frozen, or the call may
take its time. So the client also asks it a small question: if that isn't answered either, all its calls go on to the
next.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Final, TypeVar

import grpc.aio

from statehouse.client.addresses import addresses
from statehouse.client.peers import CLOSED, Method, Peer
from statehouse.client.router_choice import RouterChoice
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.credentials import CredentialFiles
from statehouse.rpc.failures import is_servers, tls_hint
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.v1 import fleet_service_pb2

LATE_S: Final = 0.1
"""A call that takes longer has its router asked whether it lives; the answer has to come within this time, too …"""
_TIMES_THE_BEST: Final = 4
"""… or within so many times the quickest answer of this router, if that is more: networks may be slow."""
_FIRST_S: Final = 1.0
"""… or within this time, if it has never answered."""
_ASKED_EVERY_S: Final = 0.5
# What gRPC itself says of a server that isn't there, or ends. What else it says would be said again.
_GONE: Final = frozenset({"UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL"})
_COMES_BACK: Final = BackoffPolicy("router_comes_back", first_s=0.05, longest_s=0.4)

Request = TypeVar("Request")
Response = TypeVar("Response")
RouterCall = Callable[["RouterPeer", float], "grpc.aio.UnaryUnaryCall[Request, Response]"]
"""Makes a call of a router, with a timeout in seconds."""


class RouterPeer(Peer):
    """A router, and its calls under way. Or a node, which answers for its own partitions only."""

    def __init__(self, target: str, max_message_bytes: int, files: CredentialFiles | None = None) -> None:
        super().__init__(target, max_message_bytes, files)
        self._began_at: dict[grpc.aio.Call, float] = {}
        self._quickest_s: float | None = None
        self.asked_at = self.answered_at = float("-inf")
        """When it was last asked whether it lives, and when it last answered anything."""

    async def carry(self, call: grpc.aio.UnaryUnaryCall[Request, Response]) -> Response:
        """Await a call and return its response.

        Raises:
            LookupFailure: it failed, or the router was left.

        """
        loop = asyncio.get_running_loop()
        began_at = self._began_at[call] = loop.time()
        try:
            response = await self.call(call)
        except LookupFailure as failure:
            if is_answer(failure):
                self.answered_at = loop.time()
            raise
        finally:
            del self._began_at[call]
        self.answered_at = loop.time()
        took_s = self.answered_at - began_at
        self._quickest_s = took_s if self._quickest_s is None else min(took_s, self._quickest_s)
        return response

    @property
    def late_s(self) -> float:
        """After how long an answer of it is late."""
        return _FIRST_S if self._quickest_s is None else max(LATE_S, _TIMES_THE_BEST * self._quickest_s)

    @property
    def oldest_s(self) -> float | None:
        """When the oldest call under way began; None if there is none."""
        return next(iter(self._began_at.values()), None)

    def leave(self) -> None:
        """End its calls under way."""
        for call in self._began_at:
            call.cancel()

    async def lives(self) -> bool:
        """Ask it something small; return whether it answers that, whatever it says, or anything else meanwhile."""
        asked_at = self.asked_at = asyncio.get_running_loop().time()
        try:
            await self.call(self.fleet.LocateKey(fleet_service_pb2.LocateKeyRequest(), timeout=self.late_s))
        except LookupFailure as failure:
            is_silent = failure.reason in {Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT}
            return not is_silent or self.answered_at > asked_at
        return True

    def named(self, failure: LookupFailure, seconds: float) -> LookupFailure:
        """Name the server in a transport failure: gRPC's own message does not help people."""
        if "grpc_status" not in failure.metadata or "target" in failure.metadata:
            return failure
        metadata = {**failure.metadata, "target": self.target}
        if failure.reason is Reason.UNREACHABLE:
            message = f"{self.target} can't be reached ({failure.message}); is the router running there?"
            hint = tls_hint(failure.message, None if self._files is None else self._files.tls)
            return LookupFailure(Reason.UNREACHABLE, f"{message} {hint}".rstrip(), metadata)
        if failure.reason is Reason.ATTEMPT_TIMED_OUT:
            return too_late(self.target, seconds, metadata)
        return failure


class Routers:
    """The routers of a client. Lives on the event loop."""

    def __init__(self, target: str, max_message_bytes: int, files: CredentialFiles | None = None) -> None:
        """Prepare. `target`: as `addresses` takes it. `files`: if given, TLS with them.

        Raises:
            ConfigurationError: it names no router, or one in no such form.

        """
        targets = addresses(target)
        self.target = ",".join(targets)
        self._peers = [RouterPeer(each, max_message_bytes, files) for each in targets]
        self._choice = RouterChoice(len(targets), random.randrange(len(targets)))  # noqa: S311 - nothing secret
        self._timer: asyncio.TimerHandle | None = None
        self._background = BackgroundWork()
        self._is_closed = False

    @property
    def current(self) -> RouterPeer:
        """The router to ask."""
        return self._peers[self._choice.current]

    async def make(self, method: Method[Request, Response], request: Request, seconds: float) -> Response:
        """Make a call of QueryService; as `ask`."""
        return await self.ask(lambda peer, left_s: method(peer.query)(request, timeout=left_s), seconds)

    async def ask(self, make: RouterCall[Request, Response], seconds: float) -> Response:
        """Make a call, at one router after the other until one answers or `seconds` are over.

        If none of them can be reached, it fails immediately, unless one has answered before: then it may come back.

        Raises:
            LookupFailure: it failed.

        """
        loop = asyncio.get_running_loop()
        give_up_at, backoff = loop.time() + seconds, Backoff(_COMES_BACK)
        for attempt in itertools.count(1):
            if self._is_closed:
                raise closed()
            number = self._choice.current
            peer = self._peers[number]
            self._watch()
            try:
                response = await peer.carry(make(peer, max(0.0, give_up_at - loop.time())))
            except LookupFailure as failure:
                if is_answer(failure):
                    self._choice.succeeded(number)
                if self._is_closed or not is_routers(failure):
                    raise peer.named(failure, seconds) from failure.__cause__
                self._choice.failed(number, loop.time())
                has_asked_all = attempt % len(self._peers) == 0
                pause_s = backoff.failed() if has_asked_all else 0.0
                is_hopeless = has_asked_all and not self._choice.has_answered
                if is_hopeless or loop.time() + pause_s >= give_up_at:
                    raise peer.named(failure, seconds) from failure.__cause__
                await asyncio.sleep(pause_s)
            else:
                self._choice.succeeded(number)
                return response
        raise AssertionError("a count never ends")

    def stream_failed(self, peer: RouterPeer, failure: LookupFailure) -> None:
        """Take that a stream from a router has failed, so that the next one is had from another."""
        if is_routers(failure):
            self._choice.failed(self._peers.index(peer), asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._background.cancel()
        for peer in self._peers:
            peer.leave()
            await peer.close()

    def _watch(self) -> None:
        """Look after calls that are late, if there is another router to go on to."""
        if self._timer is None and len(self._peers) > 1:
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for number, peer in enumerate(self._peers):
            oldest_s = peer.oldest_s
            if oldest_s is None:
                continue
            self._watch()
            if now_s - oldest_s >= peer.late_s and now_s - peer.asked_at >= _ASKED_EVERY_S:
                peer.asked_at = now_s
                self._background.start(self._leave_if_silent(number, peer), "ask a router whether it lives")

    async def _leave_if_silent(self, number: int, peer: RouterPeer) -> None:
        if not await peer.lives():
            self._choice.failed(number, asyncio.get_running_loop().time())
            peer.leave()


def is_answer(failure: LookupFailure) -> bool:
    """Whether a router has said this, and is well enough to be asked."""
    if failure.reason is Reason.ROUTING_NOT_READY:
        return False
    return CLOSED not in failure.metadata and is_servers(failure)


def is_routers(failure: LookupFailure) -> bool:
    """Whether the router failed, so that another one may answer, or the same one later."""
    if failure.reason is Reason.ROUTING_NOT_READY:
        return True
    return CLOSED in failure.metadata or failure.metadata.get("grpc_status") in _GONE


def closed() -> LookupFailure:
    """Return the failure of a call of a client that is closed."""
    return LookupFailure(Reason.UNREACHABLE, "the client was closed", {CLOSED: "true"})


def too_late(target: str, seconds: float, metadata: dict[str, str]) -> LookupFailure:
    """Return the failure of a call that timed out after so many seconds."""
    message = f"{target} gave no answer within {seconds:.3g} s; allow more time with timeout"
    return LookupFailure(Reason.DEADLINE_EXCEEDED, message, metadata)
