"""A server that a client calls: a router or a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.channels import RenewedChannel
from statehouse.rpc.credentials import CredentialFiles
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.waiting import is_told_to_end
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, query_service_pb2_grpc

CLOSED: Final = "closed"
"""In the metadata of a failure: our side closed the connection, or cancelled the call."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub: TypeAlias = "query_service_pb2_grpc.QueryServiceAsyncStub"  # which exists for type checkers only
FleetStub: TypeAlias = "fleet_service_pb2_grpc.FleetServiceAsyncStub"  # as above
Method = Callable[[Stub], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]
"""A call of QueryService, at a router or a node."""


class _Stubs(NamedTuple):
    query: Stub
    fleet: FleetStub

    @classmethod
    def of(cls, channel: grpc.aio.Channel) -> _Stubs:
        return cls(query_service_pb2_grpc.QueryServiceStub(channel), fleet_service_pb2_grpc.FleetServiceStub(channel))


class Peer(RenewedChannel[_Stubs]):
    """A channel and its stubs. Lives on the event loop. `files`: if given, it is called over TLS."""

    def __init__(self, target: str, max_message_bytes: int, files: CredentialFiles | None = None) -> None:
        super().__init__(target, max_message_bytes, files, _Stubs.of)
        self.target = target

    @property
    def query(self) -> Stub:
        """For a call of QueryService that begins now."""
        return self.made.query

    @property
    def fleet(self) -> FleetStub:
        """For a call of FleetService that begins now."""
        return self.made.fleet

    def watch(
        self, request: query_service_pb2.WatchRequest
    ) -> grpc.aio.UnaryStreamCall[query_service_pb2.WatchRequest, query_service_pb2.WatchResponse]:
        """Begin to watch a store."""
        return self.hold(self.query.Watch(request))

    def watch_fleet(
        self,
    ) -> grpc.aio.UnaryStreamCall[fleet_service_pb2.WatchFleetRequest, fleet_service_pb2.WatchFleetResponse]:
        """Begin to watch the fleet, at a router."""
        return self.hold(self.fleet.WatchFleet(fleet_service_pb2.WatchFleetRequest()))

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
