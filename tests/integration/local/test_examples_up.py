"""Every example comes up by its name, with its sample data, and answers what `statehouse up` and its README.md say."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import pytest

from statehouse.local.applications import GROUP
from tests.support.netns import Network
from tests.support.pages import Terminal
from tests.support.polling import poll_until

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

ROOT: Final = Path(__file__).parents[3]
# A store that another query's results fill may come after the start has looked.
LATER: Final = {
    "features": {"statehouse scan user-features"},
    "patient_monitoring": {"statehouse scan alerts"},
}
EXAMPLES: Final = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
FILLED_S: Final = 120.0
_DIFFERS: Final = re.compile(r"^(freshness|partition|epoch) .*\n?", re.MULTILINE)
_MOMENT: Final = re.compile(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00|TIMESTAMP)\b")
_OF_A_NODE: Final = re.compile(r"^.*\bnode-\w \(.*\n?", re.MULTILINE)


@pytest.mark.feature("application-runs-local")
@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_it_comes_up_and_answers(tmp_path: Path, example: str) -> None:
    with Network() as network:  # where the usual ports are free
        terminal = Terminal({"PYTHONPATH": str(ROOT)}, network.namespace().prefix, tmp_path)
        try:
            code, said = terminal.run(f"statehouse up --app {example}")
            assert code == 0, said
            lines = [line.split(maxsplit=1) for line in said.splitlines()]
            tries = [words for label, words in filter(lambda line: len(line) == 2, lines) if label == "try"]
            assert tries, said
            assert {line[1] for line in lines if line[0] == "empty"} <= LATER.get(example, set()), said
            for words in tries:
                code, answered = terminal.run(words)
                assert code == 0, answered
                assert answered.strip()
            for scan in LATER.get(example, set()):
                poll_until(
                    lambda scan=scan: "0 entries" not in terminal.run(scan)[1], FILLED_S, f"{scan} to find entries"
                )
            for command, output in terminal.play(readme(EXAMPLES[example])):
                if command.line.startswith("statehouse ") and command.is_shown:
                    assert stable(output) == stable(command.output), f"$ {command.line}\n{output}"
        finally:
            code, said = terminal.run("statehouse down")
    assert code == 0, said
    assert not (tmp_path / ".statehouse").exists()


def readme(example: EntryPoint) -> str:
    """Return an example's page; only the leaderboard, which is the tutorial's, has none."""
    (page,) = [*(ROOT / "examples" / example.name).glob("README.md")] or [None]
    assert page is not None or example.name == "leaderboard"
    return "" if page is None else page.read_text(encoding="utf-8")


def stable(output: str) -> list[str]:
    """Return the words of an output that don't differ from run to run."""
    return _MOMENT.sub("", _OF_A_NODE.sub("", _DIFFERS.sub("", output))).split()
