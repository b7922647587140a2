"""Go tests that a test in Python hands something to."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

DATAPLANE: Final = Path(__file__).parents[2] / "dataplane"


def run_go_test(package: str, test: str, **files: Path) -> None:
    """Run one test of a package of the data plane, with files by the names of its flags; it must pass."""
    flags = [f"-{name}={path}" for name, path in files.items()]
    ran = subprocess.run(
        ["go", "test", "-count=1", "-run", f"^{test}$", f"./{package}", *flags],
        cwd=DATAPLANE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
