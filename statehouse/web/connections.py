"""One HTTP connection: its caller's certificate, and how long it may take to send a request, or to take an answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from statehouse.security.server_tls import shown_over
from statehouse.web.connection_limit import ServerSocket
from statehouse.web.gateway import CERTIFICATE
from statehouse.web.request_limit import BODY_WITHIN_S

HEADERS_BYTES_MAX: Final = 16 * 1024
HEADERS_WITHIN_S: Final = 10.0
"""So long the headers of a request may take; `connection_limit.py` has the time of a handshake before them."""
BODY_ENDS_WITHIN_S: Final = BODY_WITHIN_S + 5.0
"""So long a body may take, whether anybody waits for it or not: whoever does has answered by then."""
TAKEN_WITHIN_S: Final = 60.0
"""A caller who takes nothing of an answer for so long is cut off."""
_LOOKED_AT_S: Final = 5.0


class Connection(H11Protocol):
    """A connection, within bounds. `listener`: the socket that has accepted it."""

    def __init__(self, *args: Any, listener: ServerSocket, **named: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **named)
        self._listener = listener
        self._headers_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._taken_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who has connected."""
        super().connection_made(transport)
        self._listener.has_begun(transport.get_extra_info("peername"))
        encrypted = transport.get_extra_info("ssl_object")
        self.app_state = {**self.app_state, CERTIFICATE: b"" if encrypted is None else shown_over(encrypted)}
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._look_for_request()

    def on_response_complete(self) -> None:
        """Go on with what has come meanwhile."""
        super().on_response_complete()
        self._look_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_timers()
        if self._taken_timer is not None:
            self._taken_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Look from now on whether the caller takes anything."""
        super().pause_writing()
        if self._taken_timer is None:
            self._look(self.transport.get_write_buffer_size(), self.loop.time())

    def resume_writing(self) -> None:
        """Stop looking."""
        super().resume_writing()
        if self._taken_timer is not None:
            self._taken_timer.cancel()
            self._taken_timer = None

    def _look_for_request(self) -> None:
        """Begin to wait for headers or a body whose beginning is there; stop if they are whole, or none have come."""
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            if self._headers_timer is None:
                self._await_headers()
        elif self.conn.their_state is h11.SEND_BODY:
            if self._body_timer is None:
                self._stop_timers()
                self._body_timer = self.loop.call_later(BODY_ENDS_WITHIN_S, self.transport.abort)
        else:
            self._stop_timers()

    def _await_headers(self) -> None:
        self._stop_timers()
        self._headers_timer = self.loop.call_later(HEADERS_WITHIN_S, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._headers_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._headers_timer = self._body_timer = None

    def _look(self, waiting: int, since: float) -> None:
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        if left < waiting:
            waiting, since = left, now
        if now - since > TAKEN_WITHIN_S:
            self.transport.abort()
            return
        self._taken_timer = self.loop.call_later(_LOOKED_AT_S, partial(self._look, max(left, waiting), since))
