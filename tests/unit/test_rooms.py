"""The order of rooms is held by import-linter; these tests show that it notices an import against that order."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("statehouse", "processor", "query_service", "router", "pyspark_statehouse")


def _lint(checkout: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [str(program), "--no-cache"],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("query_service/states/lifecycle.py", "import query_service.reads.admission", "the rooms of the query node"),
        ("router/choice/candidates.py", "import router.lookups.dispatch", "the rooms of the router"),
        ("statehouse/rpc/deadline.py", "import statehouse.local.ports", "the rooms of the kernel"),
        ("statehouse/contract/paging.py", "import statehouse.link.link", "the rooms of the kernel"),
        ("processor/reports/commits.py", "import processor.run.reset", "the rooms of the processor"),
        ("processor/ownership/acting.py", "import pyspark", "the ownership controller needs neither Spark"),
        ("processor/ownership/planning/shares.py", "import processor.ownership.topics.publisher", "what it plans"),
        (
            "processor/operators/workers/keyed.py",
            "import processor.operators.joins",
            "operators: what applications call",
        ),
        ("processor/attach/columns/mapping.py", "import processor.attach.attached_query", "what columns become"),
    ],
)
def test_an_import_against_the_order_is_refused(tmp_path: Path, module: str, line: str, contract: str):
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / module).open("a") as source:
        source.write(f"\n{line}\n")

    result = _lint(tmp_path)

    assert result.returncode == 1, result.stdout + result.stderr
    broken = [text for text in result.stdout.splitlines() if "BROKEN" in text]
    assert any(contract in " ".join(result.stdout.split()) for _ in broken), result.stdout
    assert line.removeprefix("import ") in result.stdout


_AS_THEY_ARE = {
    Path(room) for room in ("processor/sink", "statehouse/v1", "statehouse/control", "statehouse/control/v1")
}
_FILES_MAX = 15
_LOOSE_MAX = 3


@pytest.mark.parametrize("package", ["query_service", "router", "processor", "statehouse"])
def test_each_room_says_what_is_in_it_and_what_may_not_be(package: str):
    rooms = [path.parent for path in (_ROOT / package).rglob("__init__.py") if path.parent != _ROOT / package]
    assert rooms
    for room in rooms:
        if room.relative_to(_ROOT) in _AS_THEY_ARE:
            continue
        text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
        assert "Nothing here" in text or text.rstrip(".").split(". ")[-1].startswith("No "), room


def test_the_rooms_of_processor_and_kernel_are_few_files_each_and_hardly_any_file_is_outside():
    def files(room: Path) -> list[Path]:
        return [path for path in room.glob("*.py") if path.name not in {"__init__.py", "__main__.py"}]

    for room in {path.parent for path in (_ROOT / "processor").rglob("*.py")}:
        assert len(files(room)) <= _FILES_MAX, room
    assert len(files(_ROOT / "processor")) <= _LOOSE_MAX
    assert files(_ROOT / "statehouse") == []
