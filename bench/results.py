"""The files that a run leaves: figures as JSON, a table, and pictures."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.machine import Watch, describe
from bench.plots import plot
from bench.report import markdown
from bench.run import Run, plan_record
from bench.shape import Plan
from bench.sides.servers import ROOT
from bench.summary import lines

RESULTS: Final = "\n## Results\n"


def write(directory: Path, stem: str, command: str, plans: Sequence[Plan], run: Run, watch: Watch) -> list[Path]:
    """Write the files, whose names begin with `stem`; return them."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "command": command,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe(),
        "disturbance": watch.so_far(),
        "plans": [plan_record(plan) for plan in plans],
        "measured": run.records,
    }
    found = lines(run.measured)
    data, page = directory / f"{stem}.json", directory / f"{stem}.md"
    data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    pictures = plot(found, directory, stem)
    page.write_text(markdown(stem, content, plans, found, [picture.name for picture in pictures]), encoding="utf-8")
    return [data, page, *pictures]


def publish(page: Path, files: Sequence[Path]) -> None:
    """Link the files of a run from a page, in place of the text that follows the line RESULTS.

    Raises:
        ValueError: the page has no such line.

    """
    kept, found, _ = page.read_text(encoding="utf-8").partition(RESULTS)
    if not found:
        raise ValueError(f"{page} has no line {RESULTS.strip()!r}")
    table, data = (next(file for file in files if file.suffix == suffix) for suffix in (".md", ".json"))
    shown, figures = (os.path.relpath(file, page.parent) for file in (table, data))
    said = f"The last full run: [{table.stem}]({shown}), tables and pictures; [every figure of every round]({figures})."
    page.write_text(f"{kept}{RESULTS}\n{said}\n", encoding="utf-8")


def commit() -> str:
    """Return which commit this is, and whether something in it has changed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
