"""gRPC servers as all our processes run them: one port with TLS and rules, health per service, reflection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from statehouse.errors import ConfigurationError
from statehouse.link.link import LinkContext, LinkHandler
from statehouse.link.proxy import PROGRAM, DataPlane, Proxy
from statehouse.rpc.authorized import AuthorizedServer, asked_again, shown_directly, shown_to_proxy
from statehouse.rpc.channels import KEEPALIVE
from statehouse.rpc.concealing import ConcealingServer, concealing_handler
from statehouse.rpc.health import Health
from statehouse.rpc.permits import Permits
from statehouse.rpc.reflection import Reflection
from statehouse.rpc.requests import ServicesServer, TolerantServer
from statehouse.rpc.server_credentials import server_credentials
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.listening import cant_listen
from statehouse.security.draining import LOCAL_ONLY, LocalGate
from statehouse.security.shown import NOTHING_SHOWN, Shown
from statehouse.serdes.wire import refuse_beginning
from statehouse.settings import ServerSettings

if TYPE_CHECKING:
    from statehouse.security.gate import Gate

# For the three generations; Python's own are 700, 10 and 10.
_OBJECTS_BETWEEN_COLLECTIONS: Final = (20_000, 20, 50)
# It has the lookups that the proxy passes on as frames.
_PROXIED_SERVICE: Final = "statehouse.v1.QueryService"
# For requests for health and reflection, which have the name of a service or a file.
_NAME_BYTES_MAX: Final = 4 * 1024
# A proxy takes 16 KiB of metadata from callers, and adds a certificate of as much, in base64 (dataplane/tls.go). Beyond
# this size grpcio refuses some calls, by chance; by default beyond 8 KiB.
_FROM_PROXY: Final = (("grpc.max_metadata_size", 64 * 1024),)
# What grpcio bounds where there is no proxy: as the proxy has it (dataplane/main.go).
_BEGINS_WITHIN_MS: Final = 10_000
_IDLE_MAX_MS: Final = 600_000
_HEADERS_MAX_BYTES: Final = 16 * 1024
_CALLS_OF_CONNECTION_MAX: Final = 10_000
# Calls of all connections, apart from those that may last by bounds of their own. As many may wait in the proxy
# (dataplane/door.go). Each takes some 20 KiB.
_CALLS_MAX: Final = 20_000


class RpcServer:
    """An aio server with the standard side services, `health` and `reflection`.

    `services`: the fully qualified names that get a health entry; all are NOT_SERVING until `health.set`.
    `share_port`: several processes may bind the port (SO_REUSEPORT); off, a taken port is an error.

    `proxy`: serves in front of this server, see `proxy_for`. `proxied`: the handlers for the lookups that it passes on,
    as for `Link`, and `max_batch_entries` what they take of a batch. The registered services answer all other calls, as
    they do without a proxy.

    `settings`: say how the port is encrypted, and what is taken; a proxy has received them separately.
    `lasting_calls`: how many calls the services let last at the same time, by bounds of their own. `gate`: admits each
    call; without one everybody may do everything. `local_gate`: admits those that are taken from this machine only;
    without one they are taken from anywhere.
    """

    def __init__(
        self,
        bind: str,
        services: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        *,
        settings: ServerSettings,
        proxy: Proxy | None,
        proxied: Mapping[str, LinkHandler],
        max_batch_entries: int,
        lasting_calls: int,
        gate: Gate | None,
        share_port: bool = False,
        local_gate: LocalGate | None = None,
    ) -> None:
        """Bind the port.

        Raises:
            ConfigurationError: it is taken, or the files of `settings` can't be used.

        """
        options: list[tuple[str, int]] = [
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            # Clients ping every 10 s at most; a ping that comes earlier, after 5 s, is not abuse.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            *KEEPALIVE,
            *(_bounds(settings) if proxy is None else _FROM_PROXY),
        ]
        credentials: grpc.ServerCredentials | None = None
        if proxy is None and settings.tls_certificate is not None:
            credentials = server_credentials(settings)
            options.append(("grpc.max_connection_age_ms", settings.max_connection_age_ms))
        most_calls = _CALLS_MAX + lasting_calls if proxy is None else None
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most_calls)
        self.health = Health(services)
        self._proxy, self._proxied, self._gate = proxy, proxied, gate
        self._local_gate = local_gate
        self._permits: Permits | None = None
        self._check_beginning = partial(refuse_beginning, most=max_batch_entries)
        self._background = BackgroundWork()
        side = self._refusing(TolerantServer(self._server, _NAME_BYTES_MAX))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, side)
        # Generated code is typed for a whole server, but uses only this part of it.
        register(cast(grpc.aio.Server, self._guarded(TolerantServer(self._server))))
        self.reflection = Reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME])
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(self.reflection, side)
        try:
            where = bind if proxy is None else proxy.target
            if credentials is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, credentials)
        except RuntimeError as error:
            raise cant_listen(bind, error) from error
        self.port: int = port if proxy is None else proxy.port

    def _guarded(self, server: ServicesServer) -> ServicesServer:
        shown_in = shown_directly if self._proxy is None else shown_to_proxy
        if self._local_gate is not None:
            server = AuthorizedServer(server, self._local_gate.admit, shown_in, LOCAL_ONLY)
        if self._gate is None:
            return server
        return AuthorizedServer(ConcealingServer(server, self._gate.conceals, shown_in), self._gate.admit, shown_in)

    def _refusing(self, server: ServicesServer) -> ServicesServer:
        """Return the server for services that don't refuse on their own what can't be read."""
        if self._gate is None:
            return AuthorizedServer(server, _admit_all, lambda _context: NOTHING_SHOWN)
        return self._guarded(server)

    def _admitted(self, name: str, handler: LinkHandler) -> LinkHandler:
        """Return a handler of lookups that admits them first, if there are rules."""
        if self._gate is None:
            return handler
        admit, conceals, path = self._gate.admit, self._gate.conceals, f"/{_PROXIED_SERVICE}/{name}"
        concealing = concealing_handler(path, handler)

        def admitted(data: bytes, context: LinkContext) -> bytes | Awaitable[bytes]:
            admit(path, data, context.shown)
            if self._permits is not None:
                self._permits.admitted(name, path, data, context)
            answer = (concealing if conceals(path, context.shown) else handler)(data, context)
            if isinstance(answer, bytes):
                return answer
            return asked_again(answer, partial(admit, path, data, context.shown, again=True))

        return admitted

    def proxy_sums(self) -> bytes:
        """Return what the proxy last said of itself: serialized ProxySums; empty without one, or before the first."""
        return b"" if self._proxy is None else self._proxy.sums

    def connect(self, plane: DataPlane) -> None:
        """Have orders about stores go to the program in front of this server, once it has begun to accept calls.

        Raises:
            ConfigurationError: there is no such program.

        """
        if self._proxy is None:
            raise ConfigurationError(
                f"engine go needs {PROGRAM}, which is not there or not wanted: set engine to python, or proxy to its "
                "path"
            )
        self._proxy.connect(plane)
        self.give_permits()

    def give_permits(self) -> None:
        """Have the program in front of this server told what callers may do who were judged. It is to have begun."""
        if self._proxy is not None and self._gate is not None:
            self._permits = Permits(self._gate, self._proxy.link)

    async def start(self) -> None:
        """Begin to accept calls."""
        _collect_seldom()
        await self._server.start()
        if self._gate is not None:
            self._background.start(self._gate.watch_files(), "watch the files of rules")
        if self._proxy is not None:
            handlers = {name: self._admitted(name, each) for name, each in self._proxied.items()}
            await self._proxy.serve(handlers, self._check_beginning)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give those under way `grace_s` seconds."""
        self.health.end()
        ends = [self._server.stop(grace_s)]
        if self._proxy is not None:
            ends.append(self._proxy.stop(grace_s))
        await asyncio.gather(*ends)
        await self._background.cancel()

    async def close(self) -> None:
        """End the program in front of this server, if it holds stores: these are to be closed before."""
        if self._proxy is not None:
            await self._proxy.close()


def _admit_all(method: str, request: object, shown: Shown, *, again: bool = False) -> None:
    """Allow every call: there are no rules."""


def _bounds(settings: ServerSettings) -> list[tuple[str, int]]:
    """Return what grpcio is to bound itself."""
    return [
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", _BEGINS_WITHIN_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MAX_MS),
        # Above the first of both some calls are refused, by chance.
        ("grpc.max_metadata_size", _HEADERS_MAX_BYTES),
        ("grpc.absolute_max_metadata_size", _HEADERS_MAX_BYTES),
        ("grpc.max_concurrent_streams", _CALLS_OF_CONNECTION_MAX),
    ]


def _collect_seldom() -> None:
    """Have Python look for cycles less often, and never in what the process has from its start on.

    Messages have no cycles. By default a look through everything comes with every few thousand of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_OBJECTS_BETWEEN_COLLECTIONS)
