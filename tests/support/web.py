"""A web process's server on a thread of the test, and a caller that reads its events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from statehouse.settings import WebSettings
from statehouse.web.server import ExtraRoutes, serve
from tests.support.constants import settings_of
from tests.support.polling import poll_until


@contextlib.contextmanager
def web_server(router: str, extra: ExtraRoutes = lambda _gateway: (), **settings: Any) -> Iterator[str]:
    """Serve on a free port in front of a router; yield the address, host:port."""
    given = {"request_timeout_ms": 10_000, "http_port": 0, **settings}
    addresses: list[str] = []
    failures: list[BaseException] = []
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(
                serve(settings_of(WebSettings, router=router, **given), stop, extra, addresses.append)
            )
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="web")
    thread.start()
    try:
        poll_until(lambda: addresses or failures, 20, "the server to listen")
        if failures:
            raise failures[0]
        yield addresses[0]
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()


@dataclass
class Event:
    """A server-sent event. `at`: its id."""

    name: str = ""
    at: str = ""
    data: str = ""

    @property
    def body(self) -> Any:
        return json.loads(self.data)


@dataclass
class EventReader:
    """Reads the events of a stream as a browser does (HTML Living Standard, section 9.2)."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    verify: Any = True

    def __enter__(self) -> Self:
        self._held = contextlib.ExitStack()
        client = self._held.enter_context(httpx.Client(timeout=30.0, verify=self.verify))
        self.response = self._held.enter_context(client.stream("GET", self.url, headers=self.headers))
        self._lines = self.response.iter_lines()
        self.last_event_id = self.headers.get("Last-Event-ID", "")
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __iter__(self) -> Iterator[Event]:
        event, lines = Event(), list[str]()
        for line in self._lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                if event.at:
                    self.last_event_id = event.at
                if lines:
                    event.data = "\n".join(lines)
                    yield event
                event, lines = Event(), []
            elif name == "event":
                event.name = value
            elif name == "id":
                event.at = value
            elif name == "data":
                lines.append(value)

    def take(self, count: int) -> list[Event]:
        """Return the next events."""
        found = iter(self)
        return [next(found) for _ in range(count)]
