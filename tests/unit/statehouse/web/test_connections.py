"""What bounds a connection: its headers, its answers, its number; and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from statehouse.local.ports import LOOPBACK
from statehouse.web import connection_limit, connections
from tests.support.certificates import Authority
from tests.support.polling import poll_until
from tests.support.web import web_server

NOBODY = f"{LOOPBACK}:1"
LARGE = "x" * (32 << 20)


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20.0) as opened:
        yield opened


def is_closed(opened: socket.socket) -> bool:
    """Whether the server closes a connection; what it says before is dropped."""
    with contextlib.suppress(ConnectionError):
        while opened.recv(65_536):
            pass
    return True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with web_server(NOBODY, max_connections=4, max_connections_per_address=3) as served:
        yield served


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"])
def test_headers_must_come_in_time(monkeypatch: pytest.MonkeyPatch, address: str, sent: bytes):
    monkeypatch.setattr(connections, "HEADERS_WITHIN_S", 0.3)
    with connected(address) as opened:
        opened.sendall(sent)
        assert is_closed(opened)


def test_a_connection_that_is_used_stays_open(monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setattr(connections, "HEADERS_WITHIN_S", 1.5)
    with connected(address) as opened, opened.makefile("rb") as answers:  # a client of HTTP would connect again
        for _ in range(3):
            opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(3) == b"ok\n"
            threading.Event().wait(0.8)


def test_headers_have_a_size(address: str):
    with connected(address) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 20_000)
        assert opened.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.feature("denials-over-http")
def test_connections_are_counted(address: str):
    with contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(address))
        with connected(address) as further:
            assert is_closed(further)
    poll_until(lambda: refused_by(address), 20, "places to be free again")
    assert refused_by(address)["address"] >= 1


def refused_by(address: str) -> dict[str, float]:
    """Return how many connections were refused, by what; nothing while there is no place to ask."""
    with contextlib.suppress(httpx.TransportError):
        text = httpx.get(f"http://{address}/metrics").text
        return {
            bound: float(count) for bound, count in re.findall(r'refused_connections_total{bound="(\w+)"} (\S+)', text)
        }
    return {}


@pytest.mark.feature("denials-over-http")
def test_a_handshake_counts_and_must_come_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(connection_limit, "BEGINS_WITHIN_S", 2.0)
    house = Authority(tmp_path, "house")
    mine = house.issue((LOOPBACK,))
    files = {"tls_certificate": mine.certificate_path, "tls_key": mine.key_path}
    with web_server(NOBODY, max_connections=2, max_connections_per_address=2, **files) as address:
        with contextlib.ExitStack() as held:
            silent = [held.enter_context(connected(address)) for _ in range(2)]
            with connected(address) as further:
                assert is_closed(further), "nobody has made a handshake, and both places are taken"
            assert all(map(is_closed, silent)), "their time is over"
        context = ssl.create_default_context(cafile=house.path)
        poll_until(lambda: asked_by(context, address), 20, "a place")


def asked_by(context: ssl.SSLContext, address: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"https://{address}/healthz", verify=context).status_code == 200
    return False


def test_an_answer_that_nobody_takes_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "TAKEN_WITHIN_S", 0.5)
    monkeypatch.setattr(connections, "_LOOKED_AT_S", 0.1)

    async def large(_request: Request) -> Response:
        return PlainTextResponse(LARGE)

    with web_server(NOBODY, lambda _gateway: [Route("/large", large)]) as address:
        assert len(httpx.get(f"http://{address}/large", timeout=60.0).content) == len(LARGE)
        with connected(address) as opened:
            opened.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Event().wait(2.0)  # nothing says that nobody reads
            taken = 0
            with contextlib.suppress(ConnectionError):
                while part := opened.recv(1 << 20):
                    taken += len(part)
            assert taken < len(LARGE)


def test_requests_at_once_are_bounded():
    begun, done = threading.Event(), threading.Event()

    async def slow(_request: Request) -> Response:
        begun.set()
        await asyncio.to_thread(done.wait, 60.0)
        return PlainTextResponse("")

    with (
        web_server(NOBODY, lambda _gateway: [Route("/slow", slow)], http_max_requests=1) as address,
        connected(address) as opened,
    ):
        opened.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert begun.wait(20.0)
        assert httpx.get(f"http://{address}/healthz").status_code == 200
        refused = httpx.get(f"http://{address}/v1/openapi.json")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["reason"] == "OVERLOADED"
        done.set()


def test_a_renewed_certificate_is_shown_and_a_ca_that_is_replaced_counts_no_more(tmp_path: Path):
    house, other = Authority(tmp_path, "house"), Authority(tmp_path, "other")
    mine, caller, stranger = (each.issue((LOOPBACK,)) for each in (house, house, other))
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(house.path.read_bytes())
    files = {"tls_certificate": mine.certificate_path, "tls_key": mine.key_path, "tls_ca": trusted}

    def serial_shown_to(shown: object) -> int | None:
        context = ssl.create_default_context(cafile=house.path)
        context.load_cert_chain(shown.certificate_path, shown.key_path)  # type: ignore[attr-defined]
        with (
            contextlib.suppress(OSError),
            connected(address) as opened,
            context.wrap_socket(opened, server_hostname=LOOPBACK) as encrypted,
        ):
            encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if encrypted.recv(20).startswith(b"HTTP/1.1 200"):
                return int(encrypted.getpeercert()["serialNumber"], 16)  # type: ignore[index,arg-type]
        return None

    with web_server(NOBODY, **files) as address:
        first = serial_shown_to(caller)
        assert first == mine.certificate.serial_number
        assert serial_shown_to(stranger) is None
        mine.replace(house.issue((LOOPBACK,)))
        poll_until(lambda: serial_shown_to(caller) not in {None, first}, 20, "the new certificate")
        trusted.write_bytes(other.path.read_bytes())
        poll_until(lambda: serial_shown_to(stranger) is not None, 20, "the new CA")
        assert serial_shown_to(caller) is None
