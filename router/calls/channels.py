"""Connections to nodes: one channel per address, made on first use, with bytes in and bytes out.

A channel waits longer after each failure to connect. A process that returns to its old address under a new incarnation
gets a new channel, so that the router calls it immediately. TiKV closes connections on a store mismatch for the same
reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import grpc.aio

from router.fleet.table import RoutedNode
from statehouse.link.proxy import Proxy
from statehouse.rpc.channels import RenewedChannel
from statehouse.rpc.credentials import CredentialFiles
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.waiting import is_told_to_end

QUERY_SERVICE = "statehouse.v1.QueryService"
_PROBE_METHOD = "/grpc.health.v1.Health/Check"

# Codes that do not show whether the peer's process is alive.
_SILENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})

RawCall = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
RawStream = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]


class _NodeStubs:
    """A channel's method stubs, which are costly to make."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, RawCall] = {}

    def call(self, path: str) -> RawCall:
        found = self._calls.get(path)
        if found is None:
            found = self._calls[path] = self._channel.unary_unary(path)
        return found

    def stream(self, path: str) -> RawStream:
        return self._channel.unary_stream(path)


@dataclass(slots=True)
class _NodeLink:
    """The process that a channel leads to, "" if that isn't known, and the channel."""

    incarnation: str
    channel: RenewedChannel[_NodeStubs]


class NodeChannels:
    """The channels to the fleet. Lives on the event loop.

    `proxy`: if given, it makes the calls over its own connections; then only streams use the channels. `close_grace_s`:
    how long calls under way may go on when their channel is closed. `files`: if given, nodes are called over TLS.
    """

    def __init__(
        self,
        proxy: Proxy | None,
        *,
        max_message_bytes: int,
        close_grace_s: float,
        files: CredentialFiles | None = None,
    ) -> None:
        self._max_message_bytes, self._close_grace_s = max_message_bytes, close_grace_s
        self._proxy, self._files = proxy, files
        self._links: dict[str, _NodeLink] = {}
        self._closing = BackgroundWork()

    async def ask(self, node: RoutedNode, method: str, body: bytes, timeout_s: float) -> bytes:
        """Call a method of the node's QueryService.

        Raises:
            grpc.RpcError: the call failed.
            grpc.aio.UsageError: the channel was closed at this moment.

        """
        return await self._call(node, f"/{QUERY_SERVICE}/{method}", body, timeout_s)

    async def _call(self, node: RoutedNode, path: str, body: bytes, timeout_s: float) -> bytes:
        link = self._link(node)
        if self._proxy is not None:
            return await self._proxy.link.call(node.target, path, body, timeout_s)
        return await link.channel.made.call(path)(body, timeout=timeout_s)

    def stream(self, node: RoutedNode, method: str, body: bytes) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        """Call a method that answers with a stream; the reader cancels the call when done."""
        channel = self._link(node).channel
        return channel.hold(channel.made.stream(f"/{QUERY_SERVICE}/{method}")(body))

    async def probe(self, node: RoutedNode, timeout_s: float) -> bool:
        """Whether the node's process answers a health check; any answer counts."""
        try:
            await self._call(node, _PROBE_METHOD, b"", timeout_s)
        except grpc.RpcError as error:
            return error.code() not in _SILENT
        except grpc.aio.UsageError:  # the channel was closed under the call
            return False
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            return False  # as above
        return True

    def retain(self, nodes: Mapping[str, RoutedNode]) -> None:
        """Close the channels to addresses that left the fleet or now belong to another process."""
        incarnations = {node.target: node.incarnation for node in nodes.values()}
        for target, link in list(self._links.items()):
            if target not in incarnations or link.incarnation not in {"", incarnations[target]}:
                self._close(target, self._links.pop(target))
            else:
                link.incarnation = incarnations[target]

    async def close(self) -> None:
        """Close all channels."""
        while self._links:
            self._close(*self._links.popitem())
        await self._closing.finish()

    def _link(self, node: RoutedNode) -> _NodeLink:
        target = node.target
        link = self._links.get(target)
        if link is None:
            # It connects on first use.
            channel = RenewedChannel(target, self._max_message_bytes, self._files, _NodeStubs)
            link = self._links[target] = _NodeLink(node.incarnation, channel)
        return link

    def _close(self, target: str, link: _NodeLink) -> None:
        if self._proxy is not None:
            self._proxy.link.drop(target, self._close_grace_s)
        self._closing.start(link.channel.close(self._close_grace_s), f"close the channel to {target}")
