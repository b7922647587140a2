"""The programs that `make tools` builds. A test that needs one fails without it: a skipped test shows nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

TOOLS: Final = Path(__file__).parents[2] / ".tools"


def path_with_tools() -> str:
    """Return a PATH on which what `make tools` has built comes first."""
    return os.pathsep.join([str(TOOLS / "bin"), os.environ.get("PATH", "")])


def tool(name: str) -> str:
    """Return the path of a program, built or installed."""
    found = shutil.which(name, path=path_with_tools())
    if found is None:
        pytest.fail(f"there is no {name}: run `make tools`")
    return found


def built(program: Path) -> str:
    """Return the path of a file that `make tools` builds."""
    if not program.exists():
        pytest.fail(f"there is no {program}: run `make tools`")
    return str(program)
