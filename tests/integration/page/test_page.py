"""The page of a live fleet, in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.integration.page.conftest import PagedFleet
from tests.support.browser import Reader
from tests.support.page_faults import layout_faults
from tests.support.polling import poll_until

Open = Callable[..., Reader]
OF_ANY_FLEET = ("", "map", "heat", "nodes", "restores", "queries", "routing", "stores", "changelogs", "lookup")
PAGES = (*OF_ANY_FLEET, "nodes/n1", "stores/counts")


def twin(paged: PagedFleet, path: str) -> Any:
    return httpx.get(f"{paged.base}{path}", timeout=60).raise_for_status().json()


@pytest.mark.feature("page-partition-map")
def test_the_map_shows_a_move_as_it_happens_and_the_replay_what_was_before(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base)
    window.open("/map")
    assert window.text("#c-counts-0 .who") == "n1"
    epoch = paged.place("n2", "n2", reason="n1 is to rest")
    window.wait_for("#c-counts-0 .who", "n2")
    assert window.text("#c-counts-0 .lag") == "⇄ was n1"
    assert f"Epoch {epoch} n1 is to rest" in window.text(".epoch")
    window.page.get_by_role("link", name=f"{epoch - 1}", exact=True).click()
    window.wait_for("#c-counts-0 .who", "n1")
    window.page.get_by_role("link", name=f"Epoch {epoch} →").click()
    window.wait_for("#c-counts-0 .who", "n2")
    window.page.get_by_role("link", name="Back to now").click()
    # Each epoch of a replay stands for a second: who looks now and then may miss one.
    window.record("#c-counts-0 .who")
    window.page.get_by_role("link", name="Replay the last").click()
    poll_until(lambda: [text for _, text in window.recorded()][-2:] == ["n1", "n2"], 60, "the replay")


@pytest.mark.feature("page-partition-map")
def test_a_page_changes_though_one_of_its_scripts_comes_late(paged: PagedFleet, open_window: Open):
    window, held = open_window(paged.base), list[Route]()
    window.page.route("**/htmx-sse-*", lambda route: held.append(route))  # noqa: PLW0108 - it sets an attribute of it
    window.page.goto(f"{paged.base}/nodes", wait_until="commit")
    poll_until(lambda: window.page.evaluate("'htmx' in window"), 60, "the first script")
    window.page.evaluate("new Promise(done => setTimeout(done, 200))")
    held[0].continue_()
    window.page.wait_for_load_state("load")
    window.record(".strip .dim")
    poll_until(lambda: len(window.recorded()) > 1, 60, "the page to change")


@pytest.mark.feature("lookups-their-explanation")
def test_a_lookup_is_explained_and_hostile_text_stays_text(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base)
    window.open("/lookup")
    window.page.get_by_label("Key").fill("<b>bob</b>")
    window.page.get_by_role("button", name="Look up").click()
    assert window.text(".answer") == '<script>alert("x")</script>'
    explained = window.text("section[aria-labelledby=explain-title]")
    assert "answered" in explained
    assert "n1" in explained
    assert "n2" in explained
    found = twin(paged, "/lookup.json?store=counts&key=nobody")["page"]
    assert (found["found"], found["problem"], len(found["attempts"])) == (False, None, 1)
    window.open('/lookup?store=counts&key="><script>alert(1)</script>')
    assert window.text("#answer-title") == "Not found"


@pytest.mark.feature("lookups-their-explanation")
def test_a_store_is_scanned_and_watched(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base)
    window.open("/stores/counts")
    assert window.page.locator("table.entries tbody tr").count() == 3
    assert "<b>bob</b>" in window.text("table.entries")
    window.page.get_by_role("link", name="Watch the changes").click()
    expect(window.page.locator("#watched tbody tr")).to_have_count(3)
    paged.fleet.put({"dave": "4"})
    window.wait_for("#watched tbody th", "dave")
    window.open("/stores")
    assert "none: no processor of ours writes it" in window.text("main table")
    window.open("/stores/counts?prefix=a")
    assert "moments: none" in window.text("main")
    assert window.page.locator("table.entries tbody th").all_inner_texts() == ["alice"]


@pytest.mark.feature("heat-map-partitions")
def test_lookups_are_counted_by_partition(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base)
    window.open("/heat?store=counts")
    for _ in range(20):
        paged.router.get("alice")
    partition = paged.fleet.partition_of("alice")
    row = window.page.locator("main table tbody tr").nth(partition)
    expect(row.locator("td").nth(1)).to_have_text(re.compile(r"[1-9]"))


@pytest.mark.feature("json-twin-page")
def test_everything_can_be_read_without_javascript(paged: PagedFleet, open_window: Open):
    window = open_window(paged.base, java_script_enabled=False)
    for path in PAGES:
        page = window.open(f"/{path}")
        assert page.locator("h1").count() == 1, path
        assert page.locator("noscript a").first.is_visible(), path
    window.open("/map")
    window.page.locator("summary").first.click()
    assert "n1" in window.text("details table")


@pytest.mark.feature("json-twin-page")
def test_every_page_has_a_twin(paged: PagedFleet):
    for path in PAGES:
        body = twin(paged, f"/{path or 'fleet'}.json")
        assert body["frame"]["view"] == "live", path
        negotiated = httpx.get(f"{paged.base}/{path}", headers={"Accept": "application/json"}, timeout=60).json()
        assert negotiated["page"].keys() == body["page"].keys(), path


@pytest.mark.feature("page-do-users-get-errors")
@pytest.mark.parametrize("width", [390, 820, 1_440])
def test_pages_fit_the_width_of_a_screen_and_break_no_word(width: int, paged: PagedFleet, open_window: Open):
    window = open_window(paged.base, viewport={"width": width, "height": 844})
    for path in PAGES:
        page = window.open(f"/{path}")
        assert layout_faults(page) == [], path
