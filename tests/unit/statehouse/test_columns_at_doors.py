"""A key by its columns is the same key at each door: the client, the command line, HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.client import Client, KeyColumns
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2
from tests.support.fake_router import FakeRouter, fake_router
from tests.support.web import web_server

KEY = '{"user":"a&b","at":"2026-11-27T09:00:00.500000Z"}'
TYPED = ("user=a&b", "at=2026-11-27T10:00:00.5+01:00")


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.fleet = fleet_service_pb2.GetFleetResponse(epoch=5)
        store = running.fleet.stores.add(name="boards", key_serde="json", value_serde="json", partition_count=1)
        for name, kind in (("user", "string"), ("at", "timestamp")):
            store.key_columns.add(name=name, type=kind)
        running.values = {KEY: {"n": 1}}
        yield running


def last_key(router: FakeRouter) -> str:
    found = router.requests[-1]
    return str((found if found.HasField("key") else found.lookup).key.text)


def command(router: FakeRouter, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--router", router.target])


def test_the_client(router: FakeRouter) -> None:
    with Client(router.target) as client:
        by_columns = KeyColumns(at=datetime(2026, 11, 27, 9, 0, 0, 500_000, UTC), user="a&b")
        assert client.get("boards", by_columns).value == {"n": 1}
        assert last_key(router) == KEY
        with pytest.raises(LookupFailure, match="lacks column 'at'") as refused:
            client.get("boards", KeyColumns(user="a"))
    assert refused.value.reason is Reason.INVALID_KEY


@pytest.mark.parametrize("verb", ["get", "windows", "sessions", "history", "locate"])
def test_each_command_that_reads_one_key(router: FakeRouter, verb: str) -> None:
    result = command(router, verb, "boards", *(part for each in TYPED for part in ("--key-column", each)))
    assert result.exit_code == ExitCode.DONE, result.output
    assert last_key(router) == KEY


def test_a_watch(router: FakeRouter) -> None:
    router.ending = LookupFailure(Reason.TASK_FAILED, "over")
    command(router, "watch", "boards", *(part for each in TYPED for part in ("--key-column", each)))
    assert last_key(router) == KEY


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--key-column", "user=a"), "lacks column 'at'"),
        (("--key-column", "user=a", "--key-column", "user=b"), "given twice"),
        (("--key-column", "user"), "NAME=VALUE"),
        (("k", "--key-column", "user=a"), "not both"),
        ((), "give the key, or its columns"),
    ],
)
def test_a_command_says_what_is_wrong(router: FakeRouter, given: tuple[str, ...], says: str) -> None:
    result = command(router, "get", "boards", *given)
    assert result.exit_code != ExitCode.DONE
    assert says in " ".join(result.output.replace("│", " ").split()) or says in str(result.exception)


def test_http(router: FakeRouter) -> None:
    with web_server(router.target) as address, httpx.Client(base_url=f"http://{address}/v1/stores/boards") as api:
        document = json.dumps({"at": "2026-11-27T09:00:00.5Z", "user": "a&b"})
        for path in (f"/keys/{quote(document)}?columns=true", f"/keys/{quote(KEY)}"):
            answer = api.get(path)
            assert (answer.status_code, answer.json()["value"]) == (200, {"n": 1}), answer.text
        answer = api.post("/batch?columns=true", json={"keys": [document]})
        assert answer.json()["results"][0]["value"] == {"n": 1}
        answer = api.get("/keys/user=c&at=2026-11-27T09:00:00Z?columns=true")
        assert (answer.status_code, answer.json()["reason"]) == (404, "NO_SUCH_KEY")
        answer = api.get("/keys/user=c&user=d?columns=true")
        assert (answer.status_code, answer.json()["reason"]) == (400, "INVALID_KEY")
