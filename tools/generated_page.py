"""A page of the docs that a program writes: the program's `main`, which writes it or checks it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(description: str | None, page: str, text: Callable[[], str], source: str) -> None:
    """Write a page, given by its path from the root; with --check, exit if it is not what `text` returns.

    `source`: what the page is made from, in the plural, as the message says it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    target = ROOT / page
    if not parser.parse_args().check:
        target.write_text(text(), encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != text():
        sys.exit(f"{page} is not what {source} say: run `make docs`")
