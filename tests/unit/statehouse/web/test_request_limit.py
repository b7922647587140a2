"""Requests whose bodies don't come: they keep nobody out, they end, and they don't fill the log."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import re
import select
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from statehouse.local.ports import LOOPBACK
from statehouse.web import connections, request_limit
from statehouse.web.gateway import Gateway
from tests.support.polling import poll_until
from tests.support.web import web_server

NOBODY = f"{LOOPBACK}:1"
ELSEWHERE = "127.0.0.2"
BATCH = "/v1/stores/scores/batch"
PLACES = 4
SLOW = 3 * PLACES


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _form(request: Request) -> Response:
    async with request.form(max_files=0, max_fields=4) as form:
        return PlainTextResponse(str(len(form)))


async def _broken(_request: Request) -> Response:
    raise RuntimeError("a defect")


def extra(_gateway: Gateway) -> list[Route]:
    return [
        Route("/length", _length, methods=["POST", "PUT"]),
        Route("/form", _form, methods=["POST"]),
        Route("/broken", _broken),
    ]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    given = {"http_max_requests_per_address": PLACES, "http_max_body_bytes": 1_024}
    with web_server(NOBODY, extra, http_max_requests=PLACES, http_max_watches=2, **given) as served:
        yield served


@contextlib.contextmanager
def sent(address: str, data: bytes, source: str = "") -> Iterator[socket.socket]:
    """Send this on a new connection, which stays open."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20.0, source_address=(source, 0) if source else None) as opened:
        opened.sendall(data)
        yield opened


def begun(path: str, length: str = "Content-Length: 100", method: str = "POST", body: str = "") -> bytes:
    """Return a request whose body doesn't come, or not to its end."""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n{body}".encode()


def unfinished(address: str) -> dict[str, int]:
    text = httpx.get(f"http://{address}/metrics").text
    return {why: int(float(count)) for why, count in re.findall(r'unfinished_requests_total{why="(\w+)"} (\S+)', text)}


def status_on(opened: socket.socket) -> int:
    response = http.client.HTTPResponse(opened)
    response.begin()
    response.read()
    return response.status


@pytest.mark.parametrize(
    "request_begun",
    [
        begun("/length"),
        begun("/length", body="x" * 99),
        begun("/length", "Transfer-Encoding: chunked", "PUT"),
        begun("/length", "Transfer-Encoding: chunked", body="5\r\nab"),
        begun("/length", "Content-Length: 100\r\nExpect: 100-continue"),
        begun("/form", "Content-Length: 100\r\nContent-Type: application/x-www-form-urlencoded"),
        begun(BATCH, "Content-Length: 100\r\nContent-Type: application/json"),
        begun("/healthz"),
        begun("/v1/openapi.json", method="GET"),
    ],
    ids=["nothing", "all but one byte", "chunked", "half a chunk", "expects 100", "form", "batch", "health", "get"],
)
def test_bodies_that_do_not_come_keep_nobody_out(address: str, request_begun: bytes):
    with contextlib.ExitStack() as held:
        for _ in range(SLOW):
            held.enter_context(sent(address, request_begun))
        for _ in range(3):
            assert httpx.get(f"http://{address}/healthz").status_code == 200
            assert httpx.get(f"http://{address}/v1/openapi.json").status_code == 200
            assert httpx.post(f"http://{address}/length", content=b"x" * 30).text == "30"
            assert httpx.post(f"http://{address}/length", content=iter([b"x" * 10, b"y" * 10])).text == "20"


def test_who_has_waited_longest_makes_room_and_is_told(address: str):
    before = unfinished(address)["displaced"]
    with contextlib.ExitStack() as held:
        waiting = [held.enter_context(sent(address, begun("/length"))) for _ in range(PLACES + 1)]
        assert status_on(waiting[0]) == 503
        waiting[-1].sendall(b"x" * 100)
        assert status_on(waiting[-1]) == 200
    assert unfinished(address)["displaced"] == before + 1


def test_a_body_has_a_time_also_when_it_trickles(monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setattr(request_limit, "BODY_WITHIN_S", 0.5)
    before = unfinished(address)["late"]
    with sent(address, begun("/length")) as opened:
        opened.settimeout(0.1)
        for _ in range(90):
            opened.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if opened.recv(1, socket.MSG_PEEK):
                    break
        opened.settimeout(20.0)
        assert status_on(opened) == 408
    assert unfinished(address)["late"] == before + 1


@pytest.mark.parametrize("path", ["/length", "/no/such/path", "/healthz"])
def test_a_connection_ends_whose_body_does_not_although_the_answer_is_given(
    monkeypatch: pytest.MonkeyPatch, address: str, path: str
):
    monkeypatch.setattr(request_limit, "BODY_WITHIN_S", 0.2)
    monkeypatch.setattr(connections, "BODY_ENDS_WITHIN_S", 0.6)
    with sent(address, begun(path)) as opened:
        assert status_on(opened) in {408, 404, 405}

        def has_ended() -> bool:
            try:
                opened.sendall(b"x")
                return not opened.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        poll_until(has_ended, 20, "the connection to be closed")


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/length", "/form"])
def test_a_body_has_a_size_whoever_reads_it(address: str, path: str, kind: str):
    parts = (b"x" * 600 for _ in range(2))
    refused = httpx.post(f"http://{address}{path}", content=parts, headers={"Content-Type": kind})
    assert refused.status_code == (200 if path == "/form" and kind == "application/json" else 413)


def test_callers_who_leave_are_counted_and_have_few_and_short_lines(
    address: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    before = unfinished(address)["left"]
    with caplog.at_level(logging.INFO):
        for number in range(200):
            half = begun(BATCH if number % 2 else "/form", "Content-Length: 100\r\nContent-Type: application/json")
            with sent(address, half, ELSEWHERE):
                pass
        with sent(address, begun("/length", body="x" * 50), ELSEWHERE):
            pass
        poll_until(lambda: unfinished(address)["left"] > before, 20, "them to be noticed")
    out, err = capfd.readouterr()
    text = caplog.text + out + err
    assert "Traceback" not in text
    assert len(text) < 4_000


def test_a_defect_has_an_answer_and_one_line(
    address: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    answer = httpx.get(f"http://{address}/broken")
    assert (answer.status_code, answer.json()["reason"]) == (500, "INTERNAL")
    out, err = capfd.readouterr()
    assert (caplog.text + out + err).count("RuntimeError: a defect") == 1


STREAM = b"GET /live/fleet HTTP/1.1\r\nHost: localhost\r\n\r\n"
HELD = b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("asked", [STREAM, HELD], ids=["watches", "requests"])
def test_an_address_has_a_share(asked: bytes):
    held_there, done = [0], threading.Event()

    async def hold(_request: Request) -> Response:
        held_there[0] += 1
        await asyncio.to_thread(done.wait, 60.0)
        return PlainTextResponse("")

    def is_refused(source: str = "") -> bool:
        with sent(address, asked, source) as opened:
            return bool(select.select([opened], [], [], 0.3)[0]) and opened.recv(12) == b"HTTP/1.1 503"

    bounds = {"http_max_requests": 4, "http_max_watches": 4, "http_max_requests_per_address": 2}
    with (
        web_server(NOBODY, lambda _gateway: [Route("/held", hold)], **bounds) as address,
        contextlib.ExitStack() as held,
    ):
        held.callback(done.set)
        for _ in range(2):
            held.enter_context(sent(address, asked))
        poll_until(is_refused, 20, "the share of the address to be taken")
        assert not is_refused(ELSEWHERE)
