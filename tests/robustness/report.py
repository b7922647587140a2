"""The report of a run of the suite: a picture for each scenario, and the violations.

A page has the last run, and next to it the last one with TLS and rules.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.robustness.scenario import Outcome
from tests.robustness.timeline import draw

_VIOLATIONS_SHOWN: Final = 10


def write_report(path: Path, outcomes: Sequence[Outcome], machine: str, *, secured: bool = False) -> None:
    """Put the run between its marks of a page; what isn't there is made. Pictures go to a folder of its name.

    `secured`: it was a run with TLS and rules. It has marks and pictures of its own.
    """
    what, folder = ("last run with TLS and rules", "secured") if secured else ("last run", "")
    begin, end = f"<!-- {what}: begin -->", f"<!-- {what}: end -->"
    pictures = path.with_suffix("") / folder
    pictures.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        draw(outcome.history, outcome.scenario.title, pictures / f"{outcome.scenario.name}.svg")
    page = path.read_text(encoding="utf-8") if path.exists() else "# Robustness\n"
    if begin not in page:
        page += f"\n## The {what}\n\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    run = markdown(outcomes, machine, pictures.relative_to(path.parent).as_posix())
    path.write_text(f"{before}{begin}\n\n{run}\n{end}{after}", encoding="utf-8")


def markdown(outcomes: Sequence[Outcome], machine: str, pictures: str) -> str:
    """Return the run as Markdown: what held, and a picture for each scenario. The run itself prints its figures."""
    broken = [outcome.scenario.title for outcome in outcomes if outcome.violations]
    held = f"These did not hold: {', '.join(broken)}." if broken else "All scenarios held."
    lines = [f"{held} Machine: {machine}."]
    for outcome in outcomes:
        lines += ["", f"![{outcome.scenario.title}]({pictures}/{outcome.scenario.name}.svg)"]
        if outcome.violations:
            lines += ["", f"Violations: {len(outcome.violations)}. The first ones:", ""]
            lines += [f"- {_inline(str(violation))}" for violation in outcome.violations[:_VIOLATIONS_SHOWN]]
    return "\n".join(lines) + "\n"


def _inline(text: str) -> str:
    """Return a text of any length as one line that is no markup."""
    words = " ".join(text.split())
    return "`" + (words[:300] + " …" if len(words) > 300 else words).replace("`", "'") + "`"


def machine() -> str:
    """Describe what we run on, and how busy it is before we begin."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB of memory, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}; load average before the run {os.getloadavg()[0]:.1f}"
    )
