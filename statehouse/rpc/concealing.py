"""A server whose answers have no addresses of nodes where the caller may not see the fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from grpc_status import rpc_status

from statehouse.errors import DETAILS_KEY, LookupFailure
from statehouse.errors.statuses import to_status
from statehouse.link.link import LinkContext, LinkHandler
from statehouse.rpc.authorized import ShownIn
from statehouse.rpc.failures import from_status
from statehouse.rpc.requests import AdaptingServer, GrpcHandler, ServicesServer
from statehouse.rpc.status import Context
from statehouse.security.concealed import concealed_answer, concealed_failure
from statehouse.security.rights import RIGHTS, STORE_RIGHTS
from statehouse.security.shown import Shown

Conceals = Callable[[str, Shown], bool]
"""Takes the path of an admitted call's method; returns whether the answer must say nothing of where nodes are."""


class ConcealingServer(AdaptingServer):
    """The part of a server that services are added to; `conceals` is asked about each answer of theirs."""

    def __init__(self, server: ServicesServer, conceals: Conceals, shown_in: ShownIn) -> None:
        super().__init__(server)
        self._conceals, self._shown_in = conceals, shown_in

    def _adapted(self, path: str, handler: GrpcHandler) -> GrpcHandler:
        if RIGHTS.get(path) not in STORE_RIGHTS or handler.request_streaming:
            return handler
        ends = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, handler.unary_stream), *ends)
        return grpc.unary_unary_rpc_method_handler(self._call(path, handler.unary_unary), *ends)

    def _call(self, path: str, behaviour: Any) -> Any:  # noqa: ANN401 - of any messages
        async def call(request: object, context: Context) -> Any:  # noqa: ANN401 - as above
            within = _ConcealingContext(context, path, partial(self._must, path, context))
            answer = await behaviour(request, within)
            return concealed_answer(path, answer) if self._must(path, context) else answer

        return call

    def _stream(self, path: str, behaviour: Any) -> Any:  # noqa: ANN401 - as above
        async def stream(request: object, context: Context) -> None:
            await behaviour(request, _ConcealingContext(context, path, partial(self._must, path, context)))

        return stream

    def _must(self, path: str, context: Context) -> bool:
        return self._conceals(path, self._shown_in(context))


class _ConcealingContext:
    """The context of a call's work, by which answers and failures are sent."""

    def __init__(self, context: Context, path: str, must: Callable[[], bool]) -> None:
        self._context, self._path, self._must = context, path, must

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever contexts have
        return getattr(self._context, name)

    async def write(self, response: Any) -> None:  # noqa: ANN401 - a message, or one that is serialized already
        """Send a response of a stream."""
        await self._context.write(concealed_answer(self._path, response) if self._must() else response)

    async def abort_with_status(self, status: Any) -> None:  # noqa: ANN401 - as grpcio has it
        """End the call."""
        try:
            must = self._must()
        except LookupFailure:  # the caller can't be identified, and this is what the call ends with
            must = True
        if must:
            details = next((value for key, value in status.trailing_metadata if key == DETAILS_KEY), b"")
            failure = concealed_failure(from_status(status.code, status.details, details))
            status = rpc_status.to_status(to_status(failure))
        await self._context.abort_with_status(status)


def concealing_handler(path: str, handler: LinkHandler) -> Callable[[bytes, LinkContext], Awaitable[bytes]]:
    """Return a handler of lookups that come over the link, whose answers and failures have no addresses."""

    async def concealed(data: bytes, context: LinkContext) -> bytes:
        try:
            answer = handler(data, context)
            return concealed_answer(path, answer if isinstance(answer, bytes) else await answer)
        except LookupFailure as failure:
            raise concealed_failure(failure) from failure

    return concealed
