"""Where results go."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import markdown
from bench.results import RESULTS, publish
from bench.shape import Load, Plan, Shape, Side
from bench.summary import Measured, lines

RUN = {
    "command": "make bench",
    "ended_at": "now",
    "commit": "f332d41",
    "machine": {"cores": 2, "model": "x", "memory_gib": 4, "kernel": "6", "python": "3.11", "java": "17"},
    "disturbance": {"load_average_before": 0, "load_average_after": 1, "stolen_percent": 0},
}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "run.json", tmp_path / "run.md", tmp_path / "run-p99.png"]
    for file in found:
        file.write_text(f"content of {file.name}\n")
    return found


def test_a_page_names_the_files_of_a_run_after_what_it_keeps(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text(f"# Performance\n{RESULTS}\nold\n")

    publish(page, files)

    assert page.read_text() == (
        "# Performance\n\n## Results\n\n"
        "The last full run: [run](../run.md), tables and pictures; [every figure of every round](../run.json).\n"
    )


def test_a_page_without_a_place_for_them_is_refused(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n")

    with pytest.raises(ValueError, match="Results"):
        publish(page, files)


def test_the_page_of_this_project_has_a_place_for_them() -> None:
    assert RESULTS in Path("docs/performance.md").read_text(encoding="utf-8")


def test_with_tls_a_table_says_what_is_left() -> None:
    plan = Plan("Serving", Shape(10), Load(1, 1), 1, {Side.OURS: ("gets",), Side.OURS_TLS: ("gets",)})
    measured = [
        Measured(plan.name, 1, side, "Get", {"lookups_per_s": value})
        for side, value in ((Side.OURS, 2_000), (Side.OURS_TLS, 1_800))
    ]

    page = markdown("run", RUN, [plan], lines(measured), [])

    assert "| work | unit | ours | ours-tls | ours-tls / ours |" in page
    assert "| Get | lookups/s | 2 000 | 1 800 | 0.9 |" in page


def test_a_run_s_page_has_its_name_and_its_pictures() -> None:
    page = markdown("run", RUN, [], [], ["run-p99.png"])

    assert page.startswith("# run\n\n`make bench`, ended now, commit f332d41.\n")
    assert page.endswith("\n\n![run-p99.png](run-p99.png)\n")
