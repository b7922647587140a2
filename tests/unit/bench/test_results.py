"""Where results go."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import RESULTS, publish


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "run.json", tmp_path / "run.md", tmp_path / "run-p99.png"]
    for file in found:
        file.write_text(f"content of {file.name}\n")
    return found


def test_a_page_keeps_what_stands_before_its_results(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Performance\n{RESULTS}\nold\n")
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "old.png").touch()

    publish(page, files)

    assert page.read_text() == (
        "# Performance\n\n## Results\n\ncontent of run.md\n\n![run-p99](performance/run-p99.png)\n"
    )
    assert [file.name for file in (tmp_path / "performance").iterdir()] == ["run-p99.png"]


def test_a_page_without_a_place_for_them_is_refused(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n")

    with pytest.raises(ValueError, match="Results"):
        publish(page, files)


def test_the_page_of_this_project_has_a_place_for_them() -> None:
    assert RESULTS in Path("docs/performance.md").read_text(encoding="utf-8")
