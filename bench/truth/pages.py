"""Puts the table of a run, or of several, into the pages that show it.

python -m bench.truth.pages bench/results/NAME-truth.json ...
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.sides.servers import ROOT
from bench.truth.table import length_min, table

PAGES: Final = ("README.md", "docs/comparison.md", "bench/truth/README.md")
_BEGIN, _END = "<!-- written by bench/truth/pages.py -->\n", "<!-- end -->\n"


def shown(page: Path, text: str, runs: Mapping[Path, Sequence[Mapping[str, Any]]]) -> str:
    """Return a page's text with the table of runs between the marks; `runs` has the records of each file.

    Raises:
        ValueError: the page has no marks.

    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no marks {_BEGIN.strip()} and {_END.strip()}")
    records = [each for of_run in runs.values() for each in of_run]
    links = [
        f"[{', '.join(dict.fromkeys(each['system'] for each in of_run))}]"
        f"({os.path.relpath(file.with_suffix('.md'), page.parent)})"
        for file, of_run in runs.items()
    ]
    said = f"{length_min(records)} minutes under load; by fault: {', '.join(links)}"
    return f"{before}{_BEGIN}\n{table(records)}\n{said}.\n\n{_END}{after}"


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.truth.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", help="what runs have written (.json)")
    files = [each.resolve() for each in parser.parse_args().results]
    runs = {file: json.loads(file.read_text(encoding="utf-8"))["records"] for file in files}
    for page in (ROOT / name for name in PAGES):
        page.write_text(shown(page, page.read_text(encoding="utf-8"), runs), encoding="utf-8")


if __name__ == "__main__":
    main()
