"""A real schema registry on loopback: Apicurio's, which speaks Confluent's protocol, too. `make tools` fetches it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final, Self

import httpx
from confluent_kafka.schema_registry import SchemaRegistryClient

from statehouse.local.java import find_java
from statehouse.local.ports import LOOPBACK, free_port
from tests.support.http_server import served
from tests.support.polling import poll_until
from tests.support.tools import TOOLS, built

_VERSION: Final = "3.0.9"
_JAR: Final = TOOLS / "schema-registry" / f"apicurio-registry-app-{_VERSION}-runner.jar"
# On a busy machine it takes ten seconds to start.
_START_S: Final = 90.0


class SchemaRegistry:
    """The registry as a process, with its schemas in memory. It starts while other things do: `wait` for it."""

    def __init__(self, directory: Path) -> None:
        self._port, self._log = free_port(), directory / "schema-registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}/apis/ccompat/v7"

    def start(self) -> Self:
        options = {"quarkus.http.host": LOOPBACK, "quarkus.http.port": self._port}
        java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = [*java, *(f"-D{name}={value}" for name, value in options.items()), "-jar", built(_JAR)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=_JAR.parent)
        return self

    def wait(self) -> Self:
        poll_until(self._answers, _START_S, "the schema registry to answer")
        return self

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(20.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/subjects", timeout=2.0).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def registry_client(url: str) -> Iterator[SchemaRegistryClient]:
    """Give Confluent's client, as writers use it."""
    client = SchemaRegistryClient({"url": url})
    try:
        yield client
    finally:
        client.close()


@contextmanager
def registry_of(schemas: Mapping[int, tuple[str, str]], before: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Serve schemas (type, text) by their ids as a registry does, for callers that only read; give its URL.

    `before` is called before each answer.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            before()
            schema_type, text = schemas.get(int(self.path.partition("?")[0].rpartition("/")[2]), ("", ""))
            found = {"schema": text, "schemaType": schema_type} if text else {"error_code": 40403, "message": "none"}
            body = json.dumps(found).encode()
            self.send_response(200 if text else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with served(Handler) as url:
        yield url
