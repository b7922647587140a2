"""gRPC channels as all our processes and clients open them. Needs grpcio and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import grpc.aio

from statehouse.rpc import forks
from statehouse.rpc.credentials import ClientTls, CredentialFiles
from statehouse.runtime.background import BackgroundWork

KEEPALIVE: Final = (
    # Peers that vanish without a FIN are noticed by pings, idle or not.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
# Years. A watch may go on for as long as its server lets it.
_UNTIL_DONE_S: Final = 1e9

Made = TypeVar("Made")
Stream = TypeVar("Stream", bound=grpc.aio.Call)


def channel(target: str, max_message_bytes: int, files: CredentialFiles | None = None) -> grpc.aio.Channel:
    """Return a channel that reconnects to its peer quickly and sends to this address only; over TLS if files are given.

    For as long as the files are as they are now: `RenewedChannel` is for longer.

    Raises:
        UsageError: gRPC doesn't work in this process, because it was forked.

    """
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A peer that restarts is found again within a second, not after gRPC's default of up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Retries are decided where the replicas are known.
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        *KEEPALIVE,
    ]
    forks.use()
    if files is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, files.credentials, options + _name(files.tls))


def blocking_channel(target: str, tls: ClientTls | None = None) -> grpc.Channel:
    """Return a channel for a few calls without an event loop.

    Raises:
        ConfigurationError: a file of `tls` can't be used.
        UsageError: gRPC doesn't work in this process, because it was forked.

    """
    forks.use()
    if tls is None:
        return grpc.insecure_channel(target)
    return grpc.secure_channel(target, CredentialFiles(tls).credentials, _name(tls))


def _name(tls: ClientTls) -> list[tuple[str, Any]]:
    return [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []


class RenewedChannel(Generic[Made]):
    """A channel, and a new one once the files of its TLS have changed. Lives on the event loop.

    `make(channel)` makes what calls are made with. No call fails by a change: the channel before stays open until its
    calls have ended, or for `grace_s` seconds if that is given.
    """

    def __init__(
        self,
        target: str,
        max_message_bytes: int,
        files: CredentialFiles | None,
        make: Callable[[grpc.aio.Channel], Made],
        *,
        grace_s: float = _UNTIL_DONE_S,
    ) -> None:
        self._target, self._max_message_bytes, self._files = target, max_message_bytes, files
        self._make, self._grace_s = make, grace_s
        self._version = 0 if files is None else files.version
        self._streams: set[grpc.aio.Call] = set()
        self._background = BackgroundWork()
        self._is_closed = False
        self._open()

    @property
    def made(self) -> Made:
        """What was made with the present channel."""
        if self._files is not None:
            self._renew(self._files.version)
        return self._made

    def hold(self, stream: Stream) -> Stream:
        """Take note of a stream that has no deadline, so that it ends when this is closed; return it."""
        self._streams.add(stream)
        stream.add_done_callback(lambda _: self._streams.discard(stream))
        return stream

    def is_connected(self) -> bool:
        """Whether a connection is open; if not, begin to connect, without waiting."""
        if self._files is not None:
            self._renew(self._files.version)
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def close(self, grace_s: float | None = None) -> None:
        """Close it; calls under way may go on for `grace_s` seconds, those of channels before until their deadline."""
        self._is_closed = True
        await self._channel.close(grace_s)
        # A channel that is being closed can't be closed immediately any more, but its streams can end.
        for stream in list(self._streams):
            stream.cancel()
        await self._background.finish()
        forks.channel_closed()

    def _renew(self, version: int) -> None:
        if version == self._version or self._is_closed:
            return
        self._version = version
        self._background.start(self._channel.close(self._grace_s), f"close a channel to {self._target}")
        self._open()

    def _open(self) -> None:
        self._channel = channel(self._target, self._max_message_bytes, self._files)
        self._made = self._make(self._channel)
