"""A page has two runs, a plain one and one with TLS and rules; neither takes the other's place."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

from bench.machine import ProcessorTime
from tests.robustness.history import History
from tests.robustness.report import write_report
from tests.robustness.scenario import Outcome
from tests.robustness.suite import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "robustness.md"
NAME = "static-bounce"


def write(page: Path, machine: str, *, secured: bool) -> str:
    now = ProcessorTime.now()
    outcome = Outcome(SCENARIOS[NAME], SCENARIOS[NAME].small, History(), (), now.since(now))
    write_report(page, [outcome], machine, secured=secured)
    return page.read_text()


def check_both_runs_are_kept(page: Path) -> None:
    write(page, "plain 1", secured=False)
    first = write(page, "secured 1", secured=True)
    assert first.count("Machine:") == 2
    assert first.index("Machine: plain 1") < first.index("Machine: secured 1")
    assert write(page, "plain 2", secured=False) == first.replace("plain 1", "plain 2")
    last = write(page, "secured 2", secured=True)
    assert last == first.replace("plain 1", "plain 2").replace("secured 1", "secured 2")
    folder = page.with_suffix("")
    for picture in (f"{folder.name}/{NAME}.svg", f"{folder.name}/secured/{NAME}.svg"):
        assert last.count(f"({picture})") == 1
        assert (page.parent / picture).exists()


def test_a_page_that_is_made_gets_both(tmp_path: Path) -> None:
    check_both_runs_are_kept(tmp_path / "new.md")


def test_the_docs_page_has_a_place_for_both_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / PAGE.name
    copy(PAGE, page)
    check_both_runs_are_kept(page)
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert [line for line in page.read_text().splitlines() if line.startswith("## ")] == headings
