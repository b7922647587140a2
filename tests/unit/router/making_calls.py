"""Calls to a node that are answered when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from router.fleet.table import RoutedNode
from statehouse.errors import LookupFailure
from statehouse.serdes.wire import frames
from statehouse.v1 import query_service_pb2, types_pb2

NODE = RoutedNode("a", "127.0.0.1", 7101)


def body(key: str) -> bytes:
    """A lookup, serialized."""
    return query_service_pb2.GetRequest(store="scores", key=types_pb2.Key(text=key)).SerializeToString()


def response(key: str) -> bytes:
    """The answer to it."""
    return query_service_pb2.GetResponse(found=True, value=types_pb2.Value(text=f"value of {key}")).SerializeToString()


def key_of(data: bytes) -> str:
    """The key of a serialized lookup."""
    return query_service_pb2.GetRequest.FromString(data).key.text


@dataclass(eq=False)
class PendingCall:
    """A call under way."""

    method: str
    keys: tuple[str, ...]
    timeout_s: float
    reply: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, refusals: Mapping[str, LookupFailure] = MappingProxyType({})) -> None:
        """Answer all of its lookups; of a batch those of `refusals` with that."""
        if self.reply.done():
            return
        if self.method == "Get":
            self.reply.set_result(response(self.keys[0]))
            return
        batch = query_service_pb2.BatchGetResponse()
        for key in self.keys:
            if key in refusals:
                batch.results.add(error=refusals[key].to_proto())
            else:
                batch.results.add(response=query_service_pb2.GetResponse.FromString(response(key)))
        self.reply.set_result(batch.SerializeToString())


class ScriptedNode:
    """`send` of a `Coalescer`: keeps the calls until they are answered."""

    def __init__(self) -> None:
        self.calls: list[PendingCall] = []

    async def send(self, _node: RoutedNode, method: str, data: bytes, timeout_s: float) -> bytes:
        """Make a call."""
        keys = tuple(map(key_of, frames(data))) if method == "BatchGet" else (key_of(data),)
        self.calls.append(PendingCall(method, keys, timeout_s))
        return await self.calls[-1].reply

    @property
    def shapes(self) -> list[tuple[str, ...]]:
        """Method and keys of each call."""
        return [(call.method, *call.keys) for call in self.calls]
