"""A real browser for tests of the page: Debian's Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

CHROMIUM: Final = "/usr/bin/chromium"
_ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PATIENCE_MS: Final = 180_000
"""How long the browser may take for what should take no time: others may have the machine's cores."""
# Keeps what an element shows from now on, over pages: [epoch milliseconds, text], whenever it changes.
_RECORDER: Final = """(selector) => {
  sessionStorage.setItem("recorded", "[]");
  sessionStorage.setItem("recorder", selector);
}"""
_RECORDING: Final = """if (location.protocol.startsWith("http")) {
  const look = () => {
    const selector = sessionStorage.getItem("recorder");
    const found = selector && document.querySelector(selector);
    if (!found) return;
    const seen = JSON.parse(sessionStorage.getItem("recorded"));
    const text = found.textContent.trim();
    if (seen.length && seen[seen.length - 1][1] === text) return;
    seen.push([Date.now(), text]);
    sessionStorage.setItem("recorded", JSON.stringify(seen));
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser. It has an event loop of its own meanwhile: no test of asyncio can run at that time."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Reader:
    """A user that looks at pages of one server. `complaints`: what the browser said in its console, or of errors."""

    base: str
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.base}{path}")
        return self.page

    def record(self, selector: str) -> None:
        """Begin to keep what an element shows; it is looked at with each change of the page, or of pages after it."""
        self.page.evaluate(_RECORDER, selector)
        self.page.evaluate(_RECORDING)

    def recorded(self) -> list[tuple[float, str]]:
        """Return what the element has shown since, with the times at which it began to: epoch seconds, as here."""
        try:
            seen = json.loads(self.page.evaluate("sessionStorage.getItem('recorded')"))
        except Error:  # another page is just being opened
            return []
        return [(at_ms / 1_000, text) for at_ms, text in seen]

    def wait_for(self, selector: str, words: str | re.Pattern[str]) -> None:
        """Wait until the first element shows exactly these words, or something that fits a pattern."""
        expect(self.page.locator(selector).first).to_have_text(words)

    def text(self, selector: str = "main") -> str:
        return self.page.locator(selector).inner_text()


@contextmanager
def reader(browser: Browser, base: str, **options: Any) -> Iterator[Reader]:
    """Open a window. `options`: of playwright's `new_context`, such as `java_script_enabled`."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_RECORDING)
    try:
        found = Reader(base, context, context.new_page())

        def said(message: ConsoleMessage) -> None:
            if message.type in {"error", "warning"}:
                found.complaints.append(message.text)

        found.page.on("console", said)
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        yield found
    finally:
        context.close()
