"""What keeps people from reading a page that is open in a browser: of its layout, and for those who can't see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.browser import Reader

Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
_WIDTHS: Final = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
# The words of a page that stand in more than one line. A word has neither a hyphen nor another place to break at.
_BROKEN_WORDS: Final = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/[A-Za-z]{2,}/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map((rect) => rect.top)).size > 1) found.push(word);
    }
  }
  return found;
}"""
# The texts that go on where nobody sees them, and where nobody can scroll to.
_CUT_TEXTS: Final = """() => [...document.querySelectorAll("main *, header *, footer *")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX === "hidden")
  .map((each) => each.textContent.trim().slice(0, 80))"""


def layout_faults(page: Page) -> list[str]:
    """Return what is wrong with how a page fits its window."""
    wanted, had = page.evaluate(_WIDTHS)
    wide = [f"it scrolls sideways: {wanted} of {had} px"] if wanted > had else []
    broken = [f"{word!r} is broken" for word in page.evaluate(_BROKEN_WORDS)]
    return [*wide, *broken, *(f"{text!r} is cut" for text in page.evaluate(_CUT_TEXTS))]


def axe_faults(window: Reader, schemes: Sequence[Scheme] = SCHEMES) -> dict[str, list[Any]]:
    """Return what axe has against the page that is open, by colour scheme."""
    found: dict[str, list[Any]] = {}
    for scheme in schemes:
        window.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        violations = Axe().run(window.page).response["violations"]
        if violations:
            found[scheme] = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in violations]
    return found
