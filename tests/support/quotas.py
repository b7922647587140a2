"""A broker that lets a client read only so much: restores that stand still for as long as a test looks at them."""

from __future__ import annotations

import socket
import struct
from typing import Final

_ALTER_CLIENT_QUOTAS: Final = 49
_TIMEOUT_S: Final = 30.0


def limit_reads(bootstrap: str, client_id: str, bytes_per_s: float) -> None:
    """Limit what clients of an id are sent of topics, as an operator does by `kafka-configs`.

    The broker counts over about ten seconds. A batch larger than ten times the limit is never sent: a restore stands
    still in front of it. Our client library has no such request (Kafka's protocol guide, AlterClientQuotas, version 0).
    """
    operation = _array(_string("consumer_byte_rate") + struct.pack(">d?", bytes_per_s, False))
    entry = _array(_string("client-id") + _string(client_id)) + operation
    header = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _string("tests")
    request = header + _array(entry) + struct.pack(">?", False)
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", answers.read(4))
        _, _, entries, error = struct.unpack_from(">iiih", answers.read(length))
    assert (entries, error) == (1, 0), f"the broker answers with the error {error} (Kafka's protocol guide)"


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(*elements: bytes) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(elements)
