"""Files that a program writes: the program's `main`, which writes them or checks them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def write_or_check(description: str | None, page: str, text: Callable[[], str], source: str) -> None:
    """Do as `write_or_check_all` with one page of the docs."""
    write_or_check_all(description, lambda: {page: text()}, source)


def write_or_check_all(
    description: str | None,
    files: Callable[[], Mapping[str, str]],
    source: str,
    *,
    all_of: str = "",
    command: str = "make docs",
) -> None:
    """Write files, given by their paths from the root; with --check, exit if one is not what `files` returns.

    `source`: what the files are made from, in the plural, as the message says it. `all_of`: a pattern of paths from the
    root; with --check, exit also if a file that `files` doesn't return matches it. `command`: what writes them.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    is_check = parser.parse_args().check
    wanted = {ROOT / name: content for name, content in files().items()}
    stale = [path for path, content in wanted.items() if not _has(path, content)]
    extra = [path for path in ROOT.glob(all_of) if path not in wanted] if all_of else []
    if is_check and (stale or extra):
        names = ", ".join(str(path.relative_to(ROOT)) for path in [*stale, *extra])
        sys.exit(f"{names}: not what {source} say: run `{command}`")
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")


def _has(path: Path, content: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == content
