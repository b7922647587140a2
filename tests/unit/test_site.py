"""The documentation's site: links of pages turned to where they lead there, and its menu."""

from __future__ import annotations

import re
import sys
from inspect import signature
from pathlib import Path
from typing import Final

import griffe
import pytest

from statehouse.client import AsyncClient, Client
from tools.record_terminal import picture, recorded
from tools.site_hooks import expanded, outside, with_links
from tools.site_methods import MadeMethods

ROOT: Final = Path(__file__).parents[2]


@pytest.mark.feature("site-documentation-built")
@pytest.mark.parametrize(
    ("page", "link", "on_site"),
    [
        ("docs/stores.md", "[freshness](freshness.md#waiting)", "[freshness](freshness.md#waiting)"),
        ("docs/stores.md", "[tally](../examples/tally/README.md)", "[tally](examples/tally/README.md)"),
        ("docs/README.md", "[README](../README.md)", "[README](overview.md)"),
        ("docs/adr/0001-x.md", "[rules](../../CONTRIBUTING.md#rules)", "[rules](../CONTRIBUTING.md#rules)"),
        ("README.md", "[limits](docs/limits.md)", "[limits](limits.md)"),
        ("examples/tally/README.md", "[stores](../../docs/stores.md)", "[stores](../../stores.md)"),
        ("examples/tally/README.md", "[all](../README.md)", "[all](../README.md)"),
        ("docs/a.md", "![a picture](images/lookup.svg)", "![a picture](images/lookup.svg)"),
        ("docs/a.md", "[the licence](../LICENSE)", "the licence (`LICENSE`)"),
        ("docs/a.md", "[test_docs.py::test_x](../tests/unit/test_docs.py)", "test_docs.py::test_x"),
        ("docs/a.md", "[KIP](https://a.example/x.md) [here](#there)", "[KIP](https://a.example/x.md) [here](#there)"),
        ("docs/a.md", "```\n[a](../LICENSE)\n```", "```\n[a](../LICENSE)\n```"),
    ],
)
def test_links_lead_to_the_same_on_the_site(page: str, link: str, on_site: str) -> None:
    assert with_links(link, page, outside()) == on_site


def test_pages_from_elsewhere_are_on_the_site() -> None:
    assert {"README.md", "CHANGELOG.md", "examples/README.md", "examples/tally/README.md"} <= outside().keys()
    assert "README.md" not in outside().values(), "that is the first page's"


def test_a_pattern_in_the_menu_stands_for_its_pages() -> None:
    pages = ["adr/2.md", "adr/1.md", "a.md"]
    assert expanded([{"Why": ["adr/*.md", "a.md"]}, "a.md"], pages) == [
        {"Why": ["adr/1.md", "adr/2.md", "a.md"]},
        "a.md",
    ]


def test_nothing_on_the_site_comes_from_another_host() -> None:
    configured = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in configured
    assert re.findall(r"https?://", configured) == []


def test_a_recorded_terminal_is_a_picture_that_loads_nothing() -> None:
    code, printed = recorded([sys.executable, "-c", "print('\\x1b[1mup\\x1b[0m in 3 s')"])
    assert code == 0
    shown = picture("make up", printed)
    assert "<title>make up, recorded</title>" in shown
    assert "in&#160;3&#160;s" in shown
    assert re.findall(r"url\((?!#)|src=|href=", shown) == []


def test_pictures_say_what_they_show() -> None:
    pictures = list((ROOT / "docs" / "images").glob("*.svg"))
    assert len(pictures) >= 3
    for each in pictures:
        shown = each.read_text(encoding="utf-8")
        assert "<title" in shown, each
        assert "<desc" in shown, each


@pytest.mark.feature("site-documentation-built")
def test_the_site_is_built_where_its_pages_are_checked() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    check = makefile.partition("\ncheck:")[2].partition("\n\n")[0]
    assert "$(SITE)" in check
    assert re.search(r"^SITE := .*mkdocs build --strict", makefile, re.MULTILINE)


@pytest.mark.feature("site-documentation-built")
def test_the_clients_page_has_each_method_with_its_text():
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions(MadeMethods), search_paths=[ROOT], allow_inspection=False
    )
    loader.load("statehouse.client")
    for made in (Client, AsyncClient):
        shown = loader.modules_collection[f"{made.__module__}.{made.__name__}"].all_members
        for name in (each for each in dir(made) if not each.startswith("_") and callable(getattr(made, each))):
            method = shown[name]
            assert method.is_function, name
            assert method.docstring, name
            assert [each.name for each in method.parameters] == list(signature(getattr(made, name)).parameters), name
    assert (
        str(loader.modules_collection["statehouse.client.synchronous.Client"].all_members["scan"].returns)
        == "Iterator[Entry]"
    )
