"""One's own application from a fresh clone: all that docs/own-application.md says is typed, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from statehouse.local.jars import resolve_jars
from tests.support.netns import Network
from tests.support.pages import Terminal

pytestmark = [pytest.mark.long, pytest.mark.timeout(2_400)]

ROOT: Final = Path(__file__).parents[2]
TEN_MINUTES_S: Final = 600.0


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A clone of what is committed here; it is a gigabyte once it is set up, so nothing is kept of it."""
    folder = tmp_path / "statehouse"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, timeout=120)
    yield folder
    shutil.rmtree(folder)


def path_of_a_newcomer() -> str:
    """Return the PATH without what was installed and built next to this test."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not Path(folder).is_relative_to(ROOT))


@pytest.mark.feature("application-nothing-statehouse")
def test_an_own_application_answers_within_ten_minutes(clone: Path) -> None:
    sections = (clone / "docs" / "own-application.md").read_text().split("\n## ")
    told = {section.partition("\n")[0]: f"## {section}" for section in sections}
    first = [told.pop(title) for title in ("Set up", "Make it, run it")]
    resolve_jars("broker")  # where the usual ports are free there is no way out for a download
    resolve_jars("spark")

    begin = time.monotonic()
    terminal = Terminal({"PATH": path_of_a_newcomer()}, folder=clone)
    terminal.play(first[0])
    with Network() as network:
        terminal.prefix = network.namespace().prefix
        try:
            made, started, answer, *_ = [output for _, output in terminal.play(first[1])]
            took_s = time.monotonic() - begin
            for rest in told.values():
                terminal.play(rest)
        finally:
            terminal.run("statehouse down")
    assert "cd hello && statehouse up" in made
    assert "statehouse get customers ann" in started
    assert '"orders": 3' in answer
    assert took_s < TEN_MINUTES_S, "from the clone to the answer"
    assert not (clone.parent / "hello" / ".statehouse").exists()
