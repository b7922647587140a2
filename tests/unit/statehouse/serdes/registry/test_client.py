"""Asking a registry, which answers some questions late and refuses others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from statehouse.serdes import SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.client import RegisteredText, RegistryClient

SLOW, REFUSED = 1, 2


class Registry(ThreadingHTTPServer):
    """Has every schema: one comes late, and one only for others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.is_asked, self.may_answer = threading.Event(), threading.Event()


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        schema_id = int(self.path.partition("?")[0].rpartition("/")[2])
        if schema_id == SLOW:
            self.server.is_asked.set()
            self.server.may_answer.wait(10)
        status = 403 if schema_id == REFUSED else 200
        body = json.dumps({"error_code": status, "message": "no"} if status == 403 else {"schema": '"long"'}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        serving = threading.Thread(target=registry.serve_forever, daemon=True)
        serving.start()
        yield registry
        registry.may_answer.set()
        registry.shutdown()


def test_a_refusal_cuts_no_other_question_off(registry: Registry) -> None:
    client = RegistryClient(SerdeOptions(f"http://127.0.0.1:{registry.server_port}", timeout_s=10.0), "AVRO")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.schema, SLOW)
        assert registry.is_asked.wait(10)
        with pytest.raises(SerdeUnavailable, match="403"):
            client.schema(REFUSED)
        registry.may_answer.set()
        assert slow.result(10) == RegisteredText('"long"')
    assert client.schema(3) == RegisteredText('"long"')
