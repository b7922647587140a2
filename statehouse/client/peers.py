"""The two kinds of servers that a client calls: the router and the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import grpc
import grpc.aio

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import fleet_service_pb2_grpc, query_service_pb2_grpc
from statehouse.waiting import is_told_to_end

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub: TypeAlias = "query_service_pb2_grpc.QueryServiceAsyncStub"  # which exists for type checkers only
Method = Callable[[Stub], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]
"""A call of QueryService, at a router or a node."""


class Peer:
    """A channel and its stubs. Lives on the event loop."""

    def __init__(self, target: str, max_message_bytes: int) -> None:
        self.target = target
        self._channel = channel(target, max_message_bytes)
        self.query = query_service_pb2_grpc.QueryServiceStub(self._channel)
        self.fleet = fleet_service_pb2_grpc.FleetServiceStub(self._channel)

    def is_connected(self) -> bool:
        """Whether a connection is open; if not, begin to connect, without waiting."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    @staticmethod
    async def call(call: Awaitable[Response]) -> Response:
        """Await a call and return its response.

        Raises:
            LookupFailure: it failed.

        """
        try:
            return await call
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        except grpc.aio.UsageError as error:
            raise LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}") from error
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            # Our task was not cancelled, the call was: its channel was closed.
            raise LookupFailure(Reason.UNREACHABLE, "the connection was closed") from None

    async def close(self, grace_s: float | None = None) -> None:
        """Close the channel; calls under way may go on for `grace_s` seconds."""
        await self._channel.close(grace_s)


class RouterPeer(Peer):
    """The server that the caller named; the client learns of all others from it."""

    async def make(self, method: Method[Request, Response], request: Request, seconds: float) -> Response:
        """Make a call of QueryService with a timeout in seconds.

        Raises:
            LookupFailure: it failed.

        """
        return await self.ask(method(self.query)(request, timeout=seconds), seconds)

    async def ask(self, call: Awaitable[Response], seconds: float) -> Response:
        """Await a call that has a timeout in seconds, and return its response.

        Raises:
            LookupFailure: it failed.

        """
        try:
            return await self.call(call)
        except LookupFailure as failure:
            raise self.named(failure, seconds) from failure.__cause__

    def named(self, failure: LookupFailure, seconds: float) -> LookupFailure:
        """Name the server in a transport failure: gRPC's own message does not help people."""
        if "grpc_status" not in failure.metadata:
            return failure
        metadata = {**failure.metadata, "target": self.target}
        if failure.reason is Reason.UNREACHABLE:
            message = f"{self.target} can't be reached ({failure.message}); is the router running there?"
            return LookupFailure(Reason.UNREACHABLE, message, metadata)
        if failure.reason is Reason.ATTEMPT_TIMED_OUT:
            return self.too_late(seconds, metadata)
        return failure

    def too_late(self, seconds: float, metadata: dict[str, str] | None = None) -> LookupFailure:
        """Return the failure of a call that timed out after so many seconds."""
        message = f"{self.target} gave no answer within {seconds:.3g} s; allow more time with timeout"
        return LookupFailure(Reason.DEADLINE_EXCEEDED, message, metadata or {"target": self.target})
