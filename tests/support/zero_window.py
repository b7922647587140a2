"""A caller of HTTP/2 who takes nothing: the window that servers may send into has no room."""

from __future__ import annotations

import socket
import struct
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW: Final = 4


def call_and_take_nothing(target: str, method: str, request: bytes) -> socket.socket:
    """Make a call, by its path, and return its connection: it lasts until that is closed."""
    host, _, port = target.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": method.encode(),
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    message = b"\0" + struct.pack(">I", len(request)) + request
    connection.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, 0))
        + _frame(_HEADERS, _END_HEADERS, 1, b"".join(map(_header, headers, headers.values())))
        + _frame(_DATA, _END_STREAM, 1, message)
    )
    return connection


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _header(name: bytes, value: bytes) -> bytes:
    """Return a header as HPACK has it, literally and without an index."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
