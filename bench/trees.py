"""Other commits of this repository, to be run in turn with this one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.sides.servers import ROOT
from statehouse.link.proxy import PROGRAM

_SOURCES: Final = ("dataplane", "proxy")  # the second one up to 0.3
_BUILD_S: Final = 600


def program_of(tree: Path) -> Path:
    """Return where a checkout has the program in front of its servers: it talks to its own version only."""
    return tree / ".tools" / "bin" / PROGRAM


def build_program(tree: Path) -> None:
    """Build the program of a tree that is no checkout with tools.

    Raises:
        BenchFailure: it can't be built.

    """
    source = next(tree / name for name in _SOURCES if (tree / name / "go.mod").exists())
    build = ["go", "-C", str(source), "build", "-buildvcs=false", "-o", str(program_of(tree)), "."]
    if subprocess.run(build, check=False, timeout=_BUILD_S).returncode != 0:
        raise BenchFailure(f"the program of {tree} can't be built")


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Give a folder with the files of a commit.

    Raises:
        BenchFailure: git knows no such commit.

    """
    with tempfile.TemporaryDirectory(prefix="bench-tree-") as directory:
        archive = Path(directory) / "tree.tar"
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", "-o", archive, commit], check=False)
        if packed.returncode != 0:
            raise BenchFailure(f"git knows no commit {commit}")
        subprocess.run(["tar", "-x", "-f", archive, "-C", directory], check=True)
        archive.unlink()
        yield Path(directory)
