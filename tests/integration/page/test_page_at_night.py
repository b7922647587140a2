"""What the pages say to somebody who is woken: on a phone and on a desk, whatever is wrong with the fleet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import httpx
import pytest

from tests.integration.page.test_page import OF_ANY_FLEET
from tests.support.browser import Reader
from tests.support.page_faults import axe_faults, layout_faults
from tests.support.polling import poll_until
from tests.support.told_fleet import FAILURE, TIMES, Night, told_fleet
from tests.support.web import web_server

Open = Callable[..., Reader]
PAGES: Final = (*OF_ANY_FLEET, "nodes/node-a", "nodes/node-c", "stores/boards", "lookup?store=boards&key=alice")
RESTARTING: Final = f"RESTARTING (5 times: {FAILURE})"
# What each page says of a state; "" is the first page. The dot's words are on every page.
DOT: Final[Mapping[Night, str]] = {
    Night.WELL: "ok",
    Night.NODE_KILLED: "users get errors",
    Night.SPARK_DEAD: "needs attention",
    Night.CRASH_LOOP: "needs attention",
}
SAID: Final[Mapping[Night, Mapping[str, tuple[str, ...]]]] = {
    Night.WELL: {
        "": ("Nothing needs attention.", "3 of 3 answer", "10 of 10 run well"),
        "nodes": ("3 nodes, all answer",),
        "queries": ("running", "999.6", "4,980"),
    },
    Night.NODE_KILLED: {
        "": ("1 partition: active is silent", "Node silent: node-c", "NO_REPLICA_AVAILABLE", "1 silent"),
        "nodes": ("1 silent", "SILENT 5"),  # 500 s, and what has passed since
        "nodes/node-c": ("SILENT 5",),
        "nodes/node-a": ("Other nodes take over 6 active tasks: 4 at once",),
        "routing": ("Asked last now: node-c",),
    },
    Night.SPARK_DEAD: {
        "": ("the processor is SILENT", "Query boards: SILENT 500 s", "2 of 2 SILENT", "No controller acts"),
        "queries": ("No controller acts.", "SILENT 500 s"),
    },
    Night.CRASH_LOOP: {
        "": (f"Query {TIMES}: {RESTARTING}", "1 of 2 RESTARTING"),
        "queries": (RESTARTING, "running"),
    },
}


@contextmanager
def shown(night: Night) -> Iterator[str]:
    """Serve the pages of a fleet in a state, once they know all of it."""
    with told_fleet(night) as fleet, web_server(fleet.router, router_metrics=fleet.metrics) as address:
        base = f"http://{address}"
        poll_until(lambda: _is_known(base, night), 60, "the page to know the fleet, its nodes and its lookups")
        yield base


def _is_known(base: str, night: Night) -> bool:
    nodes, heat = (httpx.get(f"{base}/{name}.json", timeout=60).json() for name in ("nodes", "heat"))
    is_dead = night is Night.NODE_KILLED
    contacts = [row["contact"] for row in nodes["page"]["rows"]]
    has_dot = nodes["frame"]["health"] == DOT[night]
    return (
        has_dot and contacts == ["answers", "answers", "silent" if is_dead else "answers"] and heat["page"]["times_ms"]
    )


@pytest.mark.feature("page-says-state")
@pytest.mark.parametrize("night", Night)
def test_a_phone_says_what_is_wrong_with_javascript_and_without(night: Night, open_window: Open):
    with shown(night) as base:
        phone = {"viewport": {"width": 390, "height": 844}}
        for window in (open_window(base, **phone), open_window(base, **phone, java_script_enabled=False)):
            for path, words in SAID[night].items():
                poll_until(partial(_says, window, path, [DOT[night]], ".health"), 30, f"the dot of /{path}")
                poll_until(partial(_says, window, path, words), 30, f"{words} on /{path}")
                assert layout_faults(window.open(f"/{path}")) == [], path


def _says(window: Reader, path: str, words: Iterable[str], where: str = "main") -> bool:
    """Whether a page says all that: it asks nodes again and again, and a busy machine may keep some from answering."""
    window.open(f"/{path}")
    said = re.sub(r"\s+", " ", window.text(where))
    return all(each in said for each in words)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.feature("page-says-state")
@pytest.mark.parametrize("night", Night)
def test_every_page_can_be_read_in_every_state_at_every_width(night: Night, open_window: Open):
    """The fixture sees that the browser has nothing to complain of, too."""
    found = {}
    with shown(night) as base:
        for width in (390, 820, 1_440):
            window = open_window(base, viewport={"width": width, "height": 844})
            for path in PAGES:
                page = window.open(f"/{path}")
                assert window.text(".health") == DOT[night], path
                if faults := [*layout_faults(page), *axe_faults(window).items()]:
                    found[path, width] = faults
    assert found == {}


@pytest.mark.feature("drain-page-would")
def test_a_drain_asks_first_and_says_which_standbys_take_over(open_window: Open):
    with shown(Night.NODE_KILLED) as base:
        window = open_window(base, viewport={"width": 390, "height": 844})
        page = window.open("/nodes/node-a")
        page.locator("#drain summary").focus()
        page.keyboard.press("Enter")
        asked = re.sub(r"\s+", " ", window.text("#drain form"))
        assert "6 active tasks move to other nodes: 4 at once, for which node-b is a standby of 4; 2 after" in asked
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Yes, drain node-a"
        assert layout_faults(page) == []
