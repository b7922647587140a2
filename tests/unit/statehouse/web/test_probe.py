"""`/healthz` is answered whatever HTTP a probe speaks; all other paths keep their names."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from statehouse.local.ports import LOOPBACK
from tests.support.web import web_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with web_server(f"{LOOPBACK}:1") as served:
        yield served


def asked(address: str, head: str) -> tuple[int, bytes]:
    """Send a request's head, and return the status and the body of the answer; the server closes the connection."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20.0) as opened, opened.makefile("rb") as answer:
        opened.sendall(head.encode("latin-1") + b"\r\n\r\n")
        status, *_ = answer.readline().split(b" ", 2)[1:]
        while answer.readline() != b"\r\n":
            pass
        return int(status), answer.read()


CLOSE = "\r\nConnection: close"


@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz HTTP/1.0",
        "GET /healthz HTTP/1.0\r\nHost: router.prod.svc",
        "GET /healthz?verbose=1 HTTP/1.0",
        f"GET /healthz HTTP/1.1\r\nHost: 10.0.0.9:7000{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: [2001:db8::1]:7000{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: [fe80::1%25eth0]{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: router.prod.svc:7000{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: under_score.svc{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: ROUTER{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nhost:{CLOSE}",
        f"GET http://router.prod.svc:7000/healthz HTTP/1.1\r\nHost: router.prod.svc:7000{CLOSE}",
        f"GET HTTPS://router/healthz?a=b HTTP/1.1\r\nHost: other{CLOSE}",
        f"GET /health%7A HTTP/1.1\r\nHost: router{CLOSE}",
        f"GET /healthz HTTP/1.1\r\nHost: router\r\nSec-Fetch-Site: cross-site\r\nOrigin: https://evil.example{CLOSE}",
    ],
)
def test_probes_are_answered(address: str, head: str) -> None:
    assert asked(address, head) == (200, b"ok\n")
    assert asked(address, head.replace("GET", "HEAD", 1)) == (200, b"")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"POST /healthz HTTP/1.1\r\nHost: router\r\nContent-Length: 0{CLOSE}", 421),
        (f"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0{CLOSE}", 405),
        (f"get /healthz HTTP/1.1\r\nHost: localhost{CLOSE}", 405),  # methods have a case
        (f"GET /healthz HTTP/1.1\r\nX: y{CLOSE}", 400),
        (f"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b{CLOSE}", 400),
        (f"GET /healthzz HTTP/1.1\r\nHost: localhost{CLOSE}", 404),
    ],
)
def test_what_is_no_probe_is_not_taken_for_one(address: str, head: str, status: int) -> None:
    assert asked(address, head)[0] == status


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/metrics", "/", "/healthz/", "/healthz/../v1/openapi.json"])
def test_all_other_paths_keep_their_names(address: str, path: str) -> None:
    for head in (
        f"GET {path} HTTP/1.0",
        f"GET {path} HTTP/1.1\r\nHost: evil.example{CLOSE}",
        f"GET http://evil.example{path} HTTP/1.1\r\nHost: localhost{CLOSE}",
        f"GET http://me@localhost{path} HTTP/1.1\r\nHost: localhost{CLOSE}",
    ):
        assert asked(address, head)[0] == 421


@pytest.mark.parametrize("path", ["/v1/stores/counts/batch", "/healthz", "/no/such/path"])
@pytest.mark.parametrize("order", [1, -1])
def test_what_says_in_two_ways_where_it_ends_is_the_connections_last(address: str, path: str, order: int) -> None:
    """The second request would be another caller's to a server that goes by the other length."""
    lengths = ("Content-Length: 46", "Transfer-Encoding: chunked")[::order]
    inner = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n" + "\r\n".join(lengths) + f"\r\n\r\n{inner}"
    status, body = asked(address, head)
    assert status == 400
    assert body.count(b"HTTP/1.1") == 0, "the second one is not answered"


def test_a_whole_url_names_the_host(address: str) -> None:
    head = f"GET http://localhost/v1/openapi.json HTTP/1.1\r\nHost: evil.example{CLOSE}"
    status, body = asked(address, head)
    assert (status, body[:1]) == (200, b"{")
