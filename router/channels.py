"""Connections to nodes: one channel an address, made on first use, carrying bytes in and bytes out.

A channel remembers how often it failed and waits longer each time; a process that comes back on its old address
under a new incarnation gets a new channel, so that it is called at once (TiKV closes connections on a store
mismatch for the same reason).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc.aio

from router.table import Node
from statehouse.rpc.channels import channel
from statehouse.rpc.proxy import Proxy

QUERY_SERVICE = "statehouse.v1.QueryService"
_PROBE_METHOD = "/grpc.health.v1.Health/Check"

# Codes that say nothing about the peer's process being alive.
_SILENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})

RawCall = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class _Link:
    """A channel and its calls, which cost more to make than to use. It connects when it is first used."""

    def __init__(self, target: str, incarnation: str, max_message_bytes: int) -> None:
        self.incarnation = incarnation
        self.channel = channel(target, max_message_bytes)
        self._calls: dict[str, RawCall] = {}

    def call(self, path: str) -> RawCall:
        found = self._calls.get(path)
        if found is None:
            found = self._calls[path] = self.channel.unary_unary(path)
        return found


class NodeChannels:
    """The channels to the fleet. Lives on the event loop.

    `proxy`: makes the calls, if there is one, over connections of its own; only streams need the channels then.
    `close_grace_s`: how long calls under way on a channel that is no longer wanted may go on.
    """

    def __init__(self, proxy: Proxy | None, *, max_message_bytes: int, close_grace_s: float) -> None:
        self._max_message_bytes, self._close_grace_s = max_message_bytes, close_grace_s
        self._proxy = proxy
        self._links: dict[str, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def ask(self, node: Node, method: str, body: bytes, timeout_s: float) -> bytes:
        """Call a method of the node's QueryService.

        Raises:
            grpc.RpcError: the call failed.
            grpc.aio.UsageError: the channel was closed at this moment.

        """
        return await self._call(node, f"/{QUERY_SERVICE}/{method}", body, timeout_s)

    async def _call(self, node: Node, path: str, body: bytes, timeout_s: float) -> bytes:
        link = self._link(node)
        if self._proxy is not None:
            return await self._proxy.link.call(node.target, path, body, timeout_s)
        return await link.call(path)(body, timeout=timeout_s)

    def stream(self, node: Node, method: str, body: bytes) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        """Call a method that answers with a stream; cancel the call when it is no longer read."""
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        call = self._link(node).channel.unary_stream(f"/{QUERY_SERVICE}/{method}")
        return call(body)

    async def probe(self, node: Node, timeout_s: float) -> bool:
        """Whether the node's process answers at all: a health check, of which any answer will do."""
        try:
            await self._call(node, _PROBE_METHOD, b"", timeout_s)
        except grpc.RpcError as error:
            return error.code() not in _SILENT
        except grpc.aio.UsageError:  # the channel was closed under the call
            return False
        return True

    def retain(self, nodes: Mapping[str, Node]) -> None:
        """Close the channels of addresses that left the fleet, or that another process has taken over."""
        incarnations = {node.target: node.incarnation for node in nodes.values()}
        for target, link in list(self._links.items()):
            if target not in incarnations or link.incarnation not in {"", incarnations[target]}:
                self._close(target, self._links.pop(target))
            else:
                link.incarnation = incarnations[target]

    async def close(self) -> None:
        """Close all."""
        while self._links:
            self._close(*self._links.popitem())
        await asyncio.gather(*self._closing)

    def _link(self, node: Node) -> _Link:
        target = node.target
        link = self._links.get(target)
        if link is None:
            link = self._links[target] = _Link(target, node.incarnation, self._max_message_bytes)
        return link

    def _close(self, target: str, link: _Link) -> None:
        if self._proxy is not None:
            self._proxy.link.drop(target, self._close_grace_s)
        task: asyncio.Task[Any] = asyncio.create_task(link.channel.close(self._close_grace_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
