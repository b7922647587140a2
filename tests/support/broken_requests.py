"""Requests of HTTP whose bodies don't come, or break off, and those of others meanwhile."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

from statehouse.local.ports import LOOPBACK

ELSEWHERE: Final = "127.0.0.2"
"""So many connections that break off at once are more than a server gives to one address."""


@contextmanager
def slow_bodies(port: int, store: str, count: int) -> Iterator[None]:
    """Have so many callers begin requests whose body doesn't come, one after the other, each for as long as it may."""
    stop = threading.Event()
    paths = (_batch(store), "/nodes/n1/drain", "/no/such/path", "/healthz")
    callers = [threading.Thread(target=_hold, args=(port, paths[n % len(paths)], stop)) for n in range(count)]
    for each in callers:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in callers:
            each.join()


@contextmanager
def broken_bodies(port: int, store: str, count: int) -> Iterator[Callable[[], bool]]:
    """Have somebody break off so many requests within their bodies; yield what says whether all are broken off."""
    broken, stop = threading.Event(), threading.Event()

    def break_off() -> None:
        for _ in range(count):
            if stop.is_set():
                return
            with suppress(ConnectionError), socket.create_connection((LOOPBACK, port), 20.0, (ELSEWHERE, 0)) as opened:
                opened.sendall(_begun(_batch(store)) + b'{"keys"')
        broken.set()

    caller = threading.Thread(target=break_off)
    caller.start()
    try:
        yield lambda: broken.is_set() or _require_alive(caller)
    finally:
        stop.set()
        caller.join()


def require_served(port: int, store: str, keys: Sequence[str]) -> None:
    """Raise AssertionError unless the probe, a lookup and a batch of these keys are answered."""
    with closing(http.client.HTTPConnection(LOOPBACK, port, timeout=20.0)) as caller:
        for method, path, body in (
            ("GET", "/healthz", None),
            ("GET", f"/v1/stores/{store}/keys/{keys[0]}", None),
            ("POST", _batch(store), json.dumps({"keys": keys})),
        ):
            caller.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = caller.getresponse()
            assert answer.status == 200, (path, answer.read())
            answer.read()


def _require_alive(caller: threading.Thread) -> bool:
    assert caller.is_alive(), "it has ended before all were broken off"
    return False


def _hold(port: int, path: str, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(OSError), socket.create_connection((LOOPBACK, port), 20.0) as opened:
            opened.settimeout(0.2)
            opened.sendall(_begun(path))
            while not stop.is_set():
                with suppress(TimeoutError):
                    if not opened.recv(4096):
                        break


def _batch(store: str) -> str:
    return f"/v1/stores/{store}/batch"


def _begun(path: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 1000")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
