"""The listening socket of the HTTP port."""

from __future__ import annotations

import socket

from statehouse.local.ports import LOOPBACK
from statehouse.runtime.address_limits import AddressLimit
from statehouse.web.connection_limit import ServerSocket


def test_what_is_small_is_sent_at_once():
    """asyncio switches the waiting off for sockets that name their protocol."""
    with ServerSocket((LOOPBACK, 0), socket.AF_INET, AddressLimit(1, None)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
