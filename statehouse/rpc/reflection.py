"""Reflection, within bounds: grpcio's own servicer takes any number of streams, and questions of any length."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final

from grpc_reflection.v1alpha import reflection, reflection_pb2

from statehouse.errors import LookupFailure
from statehouse.rpc.health import refuse_long
from statehouse.rpc.status import Context, end_with
from statehouse.rpc.streams import StreamLimit

_STREAMS_MAX: Final = 1_000
"""Streams of reflection that are open at the same time: people have one each, for a moment."""


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc] # it has no types
    """Tells of the services. Lives on the event loop. `streams`: the places for those."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.streams = StreamLimit(_STREAMS_MAX, "streams of reflection")

    async def ServerReflectionInfo(  # noqa: N802 - the service's name
        self, requests: AsyncIterable[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer each question."""
        try:
            with self.streams.place():
                async for answer in super().ServerReflectionInfo(_short(requests), context):
                    yield answer
        except LookupFailure as failure:
            await end_with(context, "ServerReflectionInfo", failure)


async def _short(
    requests: AsyncIterable[reflection_pb2.ServerReflectionRequest],
) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    """Yield the requests; an answer repeats its own."""
    async for request in requests:
        refuse_long(request)
        yield request
