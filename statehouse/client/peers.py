"""A server that a client calls: a router or a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import fleet_service_pb2_grpc, query_service_pb2_grpc
from statehouse.waiting import is_told_to_end

CLOSED: Final = "closed"
"""In the metadata of a failure: our side closed the connection, or cancelled the call."""

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
            raise LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}", {CLOSED: "true"}) from error
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            # Our task was not cancelled, the call was: its channel was closed, or its server was silent.
            raise LookupFailure(Reason.UNREACHABLE, "the connection was closed", {CLOSED: "true"}) from None

    async def close(self, grace_s: float | None = None) -> None:
        """Close the channel; calls under way may go on for `grace_s` seconds."""
        await self._channel.close(grace_s)
