"""gRPC servers as all our processes run them: one port, health per service, reflection, bounded messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from statehouse.rpc.channels import KEEPALIVE
from statehouse.rpc.link import LinkHandler
from statehouse.rpc.listening import cant_listen
from statehouse.rpc.proxy import Proxy
from statehouse.rpc.requests import TolerantServer
from statehouse.rpc.serving import ServingStatus


class RpcServer:
    """An aio server with the standard side services.

    `services`: the fully qualified names that get a health entry; all are NOT_SERVING until `set_serving`.
    `share_port`: several processes may bind the port (SO_REUSEPORT); off, a taken port is an error.

    `proxy`: serves in front of this server, see `proxy_for`. `proxied`: the handlers for the lookups that it passes on,
    as for `Link`. The registered services answer all other calls, as they do without a proxy.
    """

    def __init__(
        self,
        bind: str,
        services: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        *,
        max_message_bytes: int,
        proxy: Proxy | None,
        proxied: Mapping[str, LinkHandler],
        share_port: bool = False,
    ) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", int(share_port)),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", max_message_bytes),
                # Clients ping every 10 s at most; a ping that comes earlier, after 5 s, is not abuse.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                *KEEPALIVE,
            ]
        )
        self._services = tuple(services)
        self._health = health.aio.HealthServicer()
        self._status = ServingStatus(self._tell_health)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        # Generated code is typed for a whole server, but uses only this part of it.
        register(cast(grpc.aio.Server, TolerantServer(self._server)))
        reflection.enable_server_reflection(
            [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        self._proxy, self._proxied = proxy, proxied
        try:
            port = self._server.add_insecure_port(bind if proxy is None else proxy.target)
        except RuntimeError as error:
            raise cant_listen(bind, error) from error
        self.port: int = port if proxy is None else proxy.port

    async def start(self) -> None:
        """Begin to accept calls."""
        await self._tell_health(serving=False)
        await self._server.start()
        if self._proxy is not None:
            await self._proxy.serve(self._proxied)

    def set_serving(self, *, serving: bool) -> None:
        """Set the answer to health checks; of several calls the latest counts. Call this on the event loop."""
        self._status.set(serving=serving)

    async def _tell_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give those under way `grace_s` seconds."""
        await self._status.close()
        await self._health.enter_graceful_shutdown()
        ends = [self._server.stop(grace_s)]
        if self._proxy is not None:
            ends.append(self._proxy.stop(grace_s))
        await asyncio.gather(*ends)
