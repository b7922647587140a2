"""The page at its limits: nodes that die or drain, routers that are gone, fleets without end; and who can read it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Final

import grpc
import httpx
import pytest
from playwright.sync_api import expect

from bench.page.simulated_fleet import FleetSize, simulated_fleet_process
from bench.page.web_process import web_process
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from statehouse.web.pages import poller
from tests.integration.page.conftest import PagedFleet
from tests.integration.page.test_page import OF_ANY_FLEET
from tests.support.browser import Reader
from tests.support.page_faults import axe_faults
from tests.support.polling import poll_until
from tests.support.stalls import stalls
from tests.support.web import EventReader, web_server

pytestmark = pytest.mark.long

Open = Callable[..., Reader]
LARGE: Final = FleetSize(10_000, 200)
# Where each state is shown, in addition to the pages of any fleet.
BESIDE: Final = {
    "live": (
        "nodes/n1",
        "stores/counts",
        "stores/counts?prefix=zzz",
        "map?epoch=1",
        "heat?of=lag",
        "heat?of=role",
        "lookup?store=counts&key=alice",
        "lookup?store=counts&key=nobody",
        "nodes/no",
    ),
    "large": ("nodes?page=4", "map?store=store-0&from=40&to=79", "nodes/n000"),
    "empty": (),
    "loading": (),
    "broken": (),
}


class MuteRouter(fleet_service_pb2_grpc.FleetServiceServicer):
    """Says that it lives, and never says anything of its fleet."""

    def __init__(self) -> None:
        self.asked, self.ends = threading.Event(), threading.Event()

    def LocateKey(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.LocateKeyRequest, _context: object
    ) -> fleet_service_pb2.LocateKeyResponse:
        return fleet_service_pb2.LocateKeyResponse()

    def GetFleet(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.GetFleetRequest, _context: object
    ) -> fleet_service_pb2.GetFleetResponse:
        self.asked.set()
        self.ends.wait()
        return fleet_service_pb2.GetFleetResponse()


@contextmanager
def waiting_server() -> Iterator[str]:
    """Serve the pages of a process that waits for the first answer of its router, for as long as it takes."""
    router, server = MuteRouter(), grpc.server(ThreadPoolExecutor(4))
    fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(router, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with ExitStack() as held:
        held.callback(lambda: server.stop(0).wait())
        held.callback(router.ends.set)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(poller, "ROUTER_TIMEOUT_S", 3_600.0)
            address = held.enter_context(web_server(f"127.0.0.1:{port}"))
            assert router.asked.wait(60)
        yield address


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Serve the pages of a fleet in a state, by the state's name; they end with the module."""
    with ExitStack() as held:

        @cache
        def start(state: str) -> str:
            if state == "live":
                paged: PagedFleet = request.getfixturevalue("paged")
                paged.place("n2", "n2")
                return paged.base
            if state in {"broken", "loading"}:
                server = waiting_server() if state == "loading" else web_server("127.0.0.1:1")
                base = f"http://{held.enter_context(server)}"
                poll_until(lambda: _frame(base)["view"] == state, 60, f"the page to be {state}")
                return base
            size = LARGE if state == "large" else FleetSize(0, 0, 0)
            base = held.enter_context(web_process(held.enter_context(simulated_fleet_process(size))))
            poll_until(lambda: _has_begun(base, size), 300, "the page to know the fleet")
            return base

        yield start


def _frame(base: str) -> Any:
    return httpx.get(f"{base}/fleet.json", timeout=60).json()["frame"]


def _has_begun(base: str, size: FleetSize) -> bool:
    twin = httpx.get(f"{base}/heat.json", timeout=60).json()
    return twin["frame"]["view"] == "live" and (not size.partitions or bool(twin["page"]["times_ms"]))


def seconds_until(window: Reader, selector: str, words: str, since: float) -> float:
    """Return how long after `since`, epoch seconds, an element that is recorded showed words."""

    def shown_at() -> float | None:
        return next((at for at, text in window.recorded() if at >= since and words in text), None)

    return poll_until(shown_at, 60, f"{selector} to be {words}") - since


@pytest.mark.feature("node-dies-freezes")
def test_a_node_that_is_killed_shows_as_silent_within_two_seconds_without_lookups(
    own_paged: PagedFleet, open_window: Open
):
    window = open_window(own_paged.base)
    window.open("/nodes")
    window.wait_for("#n-n2 td", re.compile("running"))
    window.record("#n-n2 td")
    with stalls() as stalled:
        killed_at = time.time()
        own_paged.nodes["n2"].kill()
        took_s = seconds_until(window, "#n-n2 td", "silent", killed_at)
    assert took_s <= 2.0 + stalled.seconds
    window.open("/map")
    expect(window.page.locator("#c-counts-1")).to_have_class(re.compile(r"\bh5\b"))
    window.open("/")
    assert "n2" in window.text(".notices")


@pytest.mark.feature("node-dies-freezes")
def test_a_node_that_is_frozen_shows_as_silent_within_two_seconds_and_as_running_afterwards(
    paged: PagedFleet, open_window: Open
):
    window = open_window(paged.base)
    window.open("/nodes")
    window.wait_for("#n-n1 td", re.compile("running"))
    window.record("#n-n1 td")
    with stalls() as stalled:
        frozen_at = time.time()
        paged.nodes["n1"].freeze()
        try:
            took_s = seconds_until(window, "#n-n1 td", "silent", frozen_at)
        finally:
            paged.nodes["n1"].thaw()
    window.wait_for("#n-n1 td", re.compile("running"))
    assert took_s <= 2.5 + stalled.seconds, "beside the second in which it might have answered"


@pytest.mark.feature("drain-page-would")
def test_a_drain_says_what_it_would_move_and_drains(own_paged: PagedFleet, open_window: Open):
    window = open_window(own_paged.base)
    page = window.open("/nodes/n1")
    assert "1 active task" in window.text("section")
    expect(page.locator("table tbody tr")).to_have_text(re.compile(r"0_0\s*n2"))
    expect(page.get_by_role("button", name="Yes, drain n1")).to_be_hidden()
    page.locator("#drain summary").click()
    assert "1 active task moves to other nodes: 1 at once" in window.text("#drain")
    assert own_paged.nodes["n1"].node().state == "RUNNING", "it asks first"
    page.get_by_role("button", name="Yes, drain n1").click()
    window.wait_for("#drain-title", "It drains")
    own_paged.place("n2", "n2", reason="n1 drains")
    assert own_paged.nodes["n1"].wait() == 0
    window.open("/nodes")
    expect(page.locator("#n-n1")).to_have_count(0)


@pytest.mark.feature("drain-page-would")
def test_a_form_that_is_not_of_this_page_drains_nothing(paged: PagedFleet):
    path = f"{paged.base}/nodes/n2/drain"
    assert httpx.get(path).status_code == 405
    for form in ({}, {"csrf_token": "guessed"}):
        assert httpx.post(path, data=form).status_code == 403
    own = httpx.get(f"{paged.base}/nodes/n2")
    token = re.search(r'name="csrf_token" value="([^"]+)"', own.text)
    assert token is not None
    assert httpx.post(path, data={"csrf_token": token[1]}).status_code == 403, "without the cookie"
    elsewhere = {"Origin": "http://elsewhere.example"}
    assert httpx.post(path, data={"csrf_token": token[1]}, cookies=own.cookies, headers=elsewhere).status_code == 403
    assert paged.nodes["n2"].node().state == "RUNNING"


@pytest.mark.feature("router-gone-said")
def test_a_router_that_dies_and_comes_back(own_paged: PagedFleet, open_window: Open):
    """The page's process ends with its router; a page of another process shows what it knew until a router is back."""
    with web_server(own_paged.router.target) as address:
        window = open_window(f"http://{address}")
        window.open("/nodes")
        window.wait_for("#n-n1 td", re.compile("running"))
        os.kill(own_paged.router.pid, signal.SIGKILL)
        window.wait_for(".banner", re.compile("No router has answered"))
        assert "n1" in window.text("table"), "what was known stays"
        assert axe_faults(window) == {}
        own_paged.router.close()
        own_paged.router.start()
        expect(window.page.locator(".banner")).to_have_count(0)


@pytest.mark.feature("json-twin-page")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("state", BESIDE)
def test_nothing_keeps_anybody_from_reading_a_page(state: str, shown: Callable[[str], str], open_window: Open):
    """Each page is loaded once, and looked at in both schemes; then once more without JavaScript."""
    base, paths = shown(state), (*OF_ANY_FLEET, *BESIDE[state])
    window, plain = open_window(base), open_window(base, java_script_enabled=False)
    found = {}
    for path in paths:
        window.open(f"/{path}")
        if problems := axe_faults(window):
            found[path] = problems
        page = plain.open(f"/{path}")
        assert page.locator("h1").count() == 1, path
        assert page.locator("main").inner_text().strip(), path
    for each in (window, plain):
        each.complaints.clear()  # a page that isn't there is said to be so
    assert found == {}
    assert _frame(base)["view"] == {"large": "live", "empty": "live"}.get(state, state)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("large", "Each field is 50 partitions"),
        ("empty", "No store is published"),
        ("loading", "Waiting for the first answer of a router"),
        ("broken", "No router answers"),
    ],
)
def test_each_state_says_what_it_is(state: str, words: str, shown: Callable[[str], str]):
    assert words in httpx.get(f"{shown(state)}/map", timeout=60).text


@pytest.mark.feature("json-twin-page")
def test_a_keyboard_reaches_everything(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base)
    page = window.open("/map")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("details table").first).to_be_visible()
    page.locator("select").focus()
    window.record(".strip .dim")
    poll_until(lambda: len(window.recorded()) >= 3, 60, "the page to change meanwhile")
    assert page.evaluate("document.activeElement.name") == "store"
    assert page.locator("details table").first.is_visible()


@pytest.mark.feature("ten-thousand-partitions")
def test_a_fleet_without_end_is_shown_in_blocks(shown: Callable[[str], str], open_window: Open):
    window = open_window(shown("large"))
    window.open("/map")
    assert window.page.locator(".cell").count() <= 200
    window.page.locator(".cell a").nth(3).click()
    expect(window.page.locator(".cell .no").first).to_have_text("150")
    assert window.page.locator(".cell").count() == 50
    window.open("/nodes")
    assert window.page.locator("tbody tr").count() == 50
    window.page.get_by_role("link", name="Next").click()
    expect(window.page.locator(".pager span").last).to_have_text(re.compile("Page 2 of 4|Next"))


@pytest.mark.feature("page-partition-map")
def test_a_stream_that_is_refused_is_asked_for_again_and_the_page_stays(paged: PagedFleet, open_window: Open):
    asked: list[str] = []
    with web_server(paged.router.target, http_max_watches=0) as address:
        poll_until(lambda: '"answers"' in httpx.get(f"http://{address}/nodes.json").text, 60, "the page to know nodes")
        window = open_window(f"http://{address}")
        window.page.on("request", lambda request: asked.append(request.url))
        window.open("/nodes")
        poll_until(lambda: "n1" in window.text("table") and sum("/live/" in each for each in asked) > 1, 60, "another")
        window.complaints.clear()  # of the refusals


@pytest.mark.feature("ten-thousand-partitions")
def test_readers_beyond_the_bound_are_told_so():
    bounds = {"http_max_watches": 2, "http_max_watches_per_address": 2}
    with simulated_fleet_process(FleetSize(2, 2)) as target, web_server(target, **bounds) as address:
        with ExitStack() as held:
            readers = [held.enter_context(EventReader(f"http://{address}/live/fleet")) for _ in range(2)]
            streams = [iter(reader) for reader in readers]  # one that nobody holds is closed
            assert all(next(stream).data for stream in streams)
            refused = httpx.get(f"http://{address}/live/fleet")
            assert (refused.status_code, refused.json()["reason"]) == (503, "OVERLOADED")
        poll_until(lambda: _takes_a_reader(address), 10, "a place")


def _takes_a_reader(address: str) -> bool:
    with httpx.stream("GET", f"http://{address}/live/fleet", timeout=60) as answer:
        return answer.status_code == 200
