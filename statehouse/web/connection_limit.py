"""How many connections the HTTP port may have. They count from the moment they are accepted, before a handshake.

asyncio has no such bound: it makes a TLS handshake with any client, and an application hears of it only afterwards.
So the listening socket itself counts, by what `accept` returns and by what closes that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from statehouse.runtime.address_limits import AddressLimit, Bound

BEGINS_WITHIN_S: Final = 10.0
"""So long a connection may take for a TLS handshake."""


class ServerSocket(socket.socket):
    """A listening socket, whose connections have places. Used on one event loop.

    `on_refused` hears of each connection that is closed immediately.
    """

    def __init__(
        self,
        address: Any,  # noqa: ANN401 - as the socket module has it
        family: socket.AddressFamily,
        limit: AddressLimit,
        on_refused: Callable[[Bound], None] = lambda _bound: None,
    ) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or there is none such.

        """
        # The protocol is named, or asyncio would not send small writes immediately: answers came 40 ms late on
        # connections that are kept.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._limit, self._on_refused = limit, on_refused
        self._begins: dict[Any, asyncio.TimerHandle] = {}
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.bind(address)
            self.listen()
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection.

        Raises:
            BlockingIOError: there is none.
            ConnectionAbortedError: there was no place for it. The loop looks at other things before the next one.

        """
        taken, address = super().accept()
        bound = self._limit.enter(address[0])
        if bound is not None:
            taken.close()
            self._on_refused(bound)
            raise ConnectionAbortedError(f"no place for a further connection: {bound}")
        admitted = _ConnectionSocket(taken, partial(self._left, address))
        self._begins[address] = asyncio.get_running_loop().call_later(BEGINS_WITHIN_S, _cut, admitted)
        return admitted, address

    def has_begun(self, address: Any) -> None:  # noqa: ANN401 - as above
        """Note that the connection from there has made its handshake, if it makes one."""
        begins = self._begins.pop(address, None)
        if begins is not None:
            begins.cancel()

    def _left(self, address: Any) -> None:  # noqa: ANN401 - as above
        self.has_begun(address)
        self._limit.leave(address[0])


class _ConnectionSocket(socket.socket):
    """A connection that gives its place back when it is closed."""

    def __init__(self, taken: socket.socket, leave: Callable[[], None]) -> None:
        super().__init__(taken.family, taken.type, taken.proto, taken.detach())
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """Close it."""
        super().close()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


def _cut(admitted: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended on its own
        admitted.shutdown(socket.SHUT_RDWR)
