"""Wheels that the tests of a run share."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hatch_build import PURE
from tests.deploy.files import ROOT
from tests.deploy.wheels import build_platform_wheel, pinned
from tools.dist import build_wheel

_PIP: Final = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation")
# What isn't in requirements/processor.txt, and what people are told to install beside it.
_FURTHER: Final = ("statehouse[registry,dataframe,sketches]", "pytest")
# pyproject.toml overrides the registry client's floor of it in the lock.
_UNPINNED: Final = "certifi"


@pytest.fixture(scope="session")
def wheels() -> Iterator[Path]:
    """A folder that everybody can read, with the wheels of all requirements, and our wheels for this machine."""
    with tempfile.TemporaryDirectory(prefix="statehouse-wheels-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        locked = ("--require-hashes", "--no-deps", "-w", name, "-r", str(ROOT / "requirements" / "processor.txt"))
        subprocess.run([*_PIP, *locked], check=True, timeout=1200)
        build_platform_wheel(folder)
        build_wheel(ROOT / "client", folder, PURE, {})
        versions = folder / "versions.txt"
        versions.write_text("\n".join(each for each in pinned() if not each.startswith(f"{_UNPINNED}==")))
        further = ("--find-links", name, "--constraint", str(versions), "-w", name, *_FURTHER)
        subprocess.run([*_PIP, *further], check=True, timeout=1200)
        yield folder
