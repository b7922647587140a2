"""Other commits of this repository, to be measured in turn with this one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.failure import BenchFailure
from bench.sides.servers import ROOT


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
