"""The HTTP API of a live router: every kind of store, watches over restarts, calls made from its own description."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from bench.page.web_process import web_process
from statehouse.local.process import descendants
from statehouse.web.api.operations import OPERATIONS
from tests.integration.web.conftest import Served
from tests.support.constants import VARIABLE
from tests.support.fleet import STORE
from tests.support.polling import poll_until
from tests.support.stores_fleet import BEGIN_MS, MINUTE_MS
from tests.support.web import Event, EventReader, web_server

_ENDS_WITHIN_S: Final = 3_600
SCHEMATHESIS: Final = Path(sys.executable).with_name("schemathesis")
# A failure with a reason is an answer: keys and bounds that are made up can't all be met.
CONFIGURATION: Final = """
max-stream-events = 1

[parameters]
"path.store" = "STORE"

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""


def got(served: Served, path: str, **params: Any) -> Any:
    answer = httpx.get(f"{served.http}/v1/stores/{path}", params=params, timeout=30.0)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.feature("stores-over-http")
def test_each_kind_of_store_is_read(served: Served):
    assert got(served, f"{STORE}/keys/ann", max_lag=0, active_only="true")["value"] == {"count": 12}
    entries = got(served, f"{STORE}/entries", page_size=3)
    rest = got(served, f"{STORE}/entries", page_size=3, page_token=entries["next_page_token"])
    assert [each["key"] for each in entries["entries"] + rest["entries"]] == ["ann", "bob", "cat", "dan"]
    assert got(served, f"{STORE}/count", exact="true")["count"] == 4
    windows = got(served, "clicks/keys/ann/windows", from_ms=BEGIN_MS + MINUTE_MS)["windows"]
    assert [(each["start_ms"], each["value"]) for each in windows] == [(BEGIN_MS + MINUTE_MS, "1")]
    assert len(got(served, "clicks/windows")["windows"]) == 4
    assert got(served, "visits/keys/ann/sessions")["sessions"][0]["value"] == "3 pages"
    assert got(served, "visits/sessions", prefix="a")["sessions"][0]["key"] == "ann"
    assert [each["value"] for each in got(served, "prices/keys/ann/history")["versions"]] == ["10", "12", "9"]
    assert got(served, "prices/keys/ann", as_of_ms=1_700_000_001_500)["value"] == "12"
    assert got(served, f"{STORE}/keys/ann/explain")["answer"]["found"] is True
    assert got(served, f"{STORE}/keys/ann/locate")["active"]["instance_id"] == "n1"
    refused = httpx.get(f"{served.http}/v1/stores/{STORE}/keys/ann/windows", timeout=30.0)
    assert (refused.status_code, refused.json()["reason"]) == (400, "WRONG_STORE_KIND")


def test_an_absent_key_is_a_proof_by_a_replica(served: Served):
    answer = httpx.get(f"{served.http}/v1/stores/{STORE}/keys/nobody", timeout=30.0)

    assert answer.status_code == 404
    assert (answer.json()["found"], answer.json()["host"]["instance_id"]) == (False, "n1")


@pytest.mark.feature("router-starts-web")
def test_a_killed_web_process_is_replaced_and_the_router_goes_on(served: Served):
    def web_processes() -> list[int]:
        found = descendants(served.router.pid)
        return [each.pid for each in found if "router.web_process" in command_of(each.pid)]

    (before,) = web_processes()
    os.kill(before, signal.SIGKILL)

    assert served.router.get("ann").found
    poll_until(lambda: served.is_up() and before not in web_processes(), 60, "another web process to answer")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def offsets(events: list[Event]) -> list[int]:
    return [each["offset"] for event in events if event.name == "change" for each in event.body["changes"]]


@pytest.mark.feature("watch-server-sent")
def test_a_watch_goes_on_over_a_routers_restart_without_a_gap(served: Served):
    """Once by the caller, whose web process ends with the router; once by a web process of its own, which stays."""
    key, seen = "zoe", list[int]()
    partition = served.fleet.partition_of(key)
    url = f"/v1/stores/{STORE}/keys/{key}/watch"
    with web_server(served.router.target) as own, EventReader(f"http://{own}{url}") as staying:
        with EventReader(f"{served.http}{url}") as reader:
            current = reader.take(1)
            staying.take(1)
            served.fleet.put({key: '{"count":1}'})
            seen += offsets(reader.take(1))
            at = reader.last_event_id
        assert current[0].body["partition"] == partition

        served.router.stop(signal.SIGTERM)
        poll_until(lambda: not served.is_up(), 30, "the web process to end with its router")
        served.fleet.put({key: '{"count":2}'})
        served.router.start()
        served.wait()

        with EventReader(f"{served.http}{url}", headers={"Last-Event-ID": at}) as reader:
            served.fleet.put({key: '{"count":3}'})
            while len(seen) < 3:
                (event,) = reader.take(1)
                assert event.name == "change", event
                seen += offsets([event])
        stayed = list[int]()
        while len(stayed) < 3:
            (event,) = staying.take(1)
            assert event.name == "change", event
            stayed += offsets([event])
    assert seen == stayed
    assert sorted(set(seen)) == seen


def run_schemathesis(served: Served, folder: Path, store: str, *options: str) -> None:
    """Make calls from the API's own description, with all checks; no operation is left out.

    Many of the calls wait: for positions and inputs that are made up, and within bounds that nobody can meet. So a web
    process of their own lets none wait for longer than a second.
    """
    configuration = folder / "schemathesis.toml"
    configuration.write_text(CONFIGURATION.replace("STORE", store))
    constants = {"max_timeout_ms": 1_000, "request_timeout_ms": 1_000}
    variables = {VARIABLE: json.dumps(constants)}
    modules = ("tests.support.constants", "statehouse.web")
    with web_process(served.router.target, modules=modules, variables=variables) as base:
        command = [str(SCHEMATHESIS), "--config-file", str(configuration), "run", f"{base}/v1/openapi.json"]
        command += ["--checks", "all", "--request-timeout", "30", "--no-color", "--seed", "1", *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_ENDS_WITHIN_S)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert re.findall(r"Tested: (\d+)", done.stdout) == [f"{len(OPERATIONS)}"], done.stdout[-6_000:]


@pytest.mark.feature("stores-over-http")
def test_a_few_calls_made_from_the_description(served: Served, tmp_path: Path):
    run_schemathesis(served, tmp_path, STORE, "--phases", "fuzzing,stateful", "-n", "5")


@pytest.mark.feature("stores-over-http")
@pytest.mark.long
@pytest.mark.timeout(_ENDS_WITHIN_S + 200)
@pytest.mark.parametrize("store", [STORE, "clicks", "visits", "prices"])
def test_calls_made_from_the_description(served: Served, tmp_path: Path, store: str):
    run_schemathesis(served, tmp_path, store, "-n", "200")
