"""The documentation's site as readers have it: built strictly, in a browser, without any other host."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.support.browser import chromium
from tests.support.http_server import served

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = ("index", "overview", "tutorial", "comparison", "architecture", "command-line", "protos", "python-api")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the site."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    handler = functools.partial(Quiet, directory=str(folder))
    with served(handler) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_nothing_from_elsewhere_and_can_be_read_by_all(site: str, browser: Browser, scheme: Any) -> None:
    page = browser.new_page(color_scheme=scheme)
    elsewhere: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(site) else elsewhere.append(request.url))
    serious: dict[str, dict[str, Any]] = {}
    for name in PAGES:
        page.goto(f"{site}/{name}.html")
        page.locator("article h1").first.wait_for()
        for each in Axe().run(page).response["violations"]:
            if each["impact"] in {"serious", "critical"}:
                serious.setdefault(name, {})[each["id"]] = [node["target"] for node in each["nodes"]][:3]
    assert serious == {}
    assert [url for url in elsewhere if not url.startswith(("data:", "blob:"))] == []
    page.close()


def test_search_finds_a_page(site: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{site}/index.html")
    page.get_by_role("textbox", name="Search").fill("hedge delay")
    result = page.locator(".md-search-result__item a").first
    result.wait_for()
    assert "routing.html" in str(result.get_attribute("href"))
    page.close()
