"""gRPC channels as all our processes and clients open them. Needs grpcio and nothing else."""

from __future__ import annotations

from typing import Final

import grpc.aio

KEEPALIVE: Final = (
    # Peers that vanish without a FIN are noticed by pings, idle or not.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def channel(target: str, max_message_bytes: int) -> grpc.aio.Channel:
    """Return a channel that reconnects to its peer quickly and sends to this address only."""
    return grpc.aio.insecure_channel(
        target,
        options=[
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
        ],
    )
