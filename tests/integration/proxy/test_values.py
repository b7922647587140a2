"""The program shows stored values as the serdes here do, or leaves them to these."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.tools import tool
from tests.support.value_cases import write_cases

PACKAGE = Path(__file__).parents[3] / "dataplane" / "values"


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_the_program_shows_values_as_python_does(count: int, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    with cases.open("wb") as file:
        file.writelines(write_cases(count, seed=count))
    # Not from Go's cache, which knows nothing of the file.
    command = [tool("go"), "test", "-count=1", "-v", "-run", "^TestAgainstReference$", "."]
    done = subprocess.run(
        command,
        cwd=PACKAGE,
        env=os.environ | {"STATEHOUSE_VALUE_CASES": str(cases)},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert "--- PASS: TestAgainstReference" in done.stdout
