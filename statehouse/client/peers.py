"""Who is at the other end of a channel: the router, or a node."""

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

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub: TypeAlias = "query_service_pb2_grpc.QueryServiceAsyncStub"  # which exists for type checkers only
Method = Callable[[Stub], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]
"""A call of QueryService, of whoever is asked."""


class Peer:
    """A channel and its stubs. Lives on the event loop."""

    def __init__(self, target: str, max_message_bytes: int) -> None:
        self.target = target
        self._channel = channel(target, max_message_bytes)
        self.query = query_service_pb2_grpc.QueryServiceStub(self._channel)
        self.fleet = fleet_service_pb2_grpc.FleetServiceStub(self._channel)

    def is_connected(self) -> bool:
        """Whether a call would find a connection; if not, one is begun, and nobody need wait for it."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    @staticmethod
    async def call(call: Awaitable[Response]) -> Response:
        """Return what a call returns.

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
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The call was cancelled, not we: its channel was closed under it.
            raise LookupFailure(Reason.UNREACHABLE, "the connection was closed") from None

    async def close(self, grace_s: float | None = None) -> None:
        """Close the channel; calls under way get `grace_s`."""
        await self._channel.close(grace_s)


class Router(Peer):
    """The router that was named to the client, by which all else is found."""

    async def make(self, method: Method[Request, Response], request: Request, seconds: float) -> Response:
        """Make a call of QueryService that may take so many seconds.

        Raises:
            LookupFailure: it failed.

        """
        return await self.ask(method(self.query)(request, timeout=seconds), seconds)

    async def ask(self, call: Awaitable[Response], seconds: float) -> Response:
        """Return what a call returns that was given so many seconds.

        Raises:
            LookupFailure: it failed.

        """
        try:
            return await self.call(call)
        except LookupFailure as failure:
            raise self.named(failure, seconds) from failure.__cause__

    def named(self, failure: LookupFailure, seconds: float) -> LookupFailure:
        """Say of a transport failure whom it concerns: what gRPC has to say of it helps nobody."""
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
        """Return the failure of a call that was given so many seconds."""
        message = f"{self.target} gave no answer within {seconds:.3g} s; allow more time with timeout"
        return LookupFailure(Reason.DEADLINE_EXCEEDED, message, metadata or {"target": self.target})
