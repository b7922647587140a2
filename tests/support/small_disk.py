"""A disk so small that a test can fill it: a tmpfs, unmounted after the test."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_CHUNK: Final = b"x" * 4096


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of this size at `path`, which is made; without the right to, the test fails and says so."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "statehouse-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"this test needs the right to mount a tmpfs (root, CAP_SYS_ADMIN): {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Take all space that is left; removing the returned file gives it back."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while file.write(_CHUNK):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return filler
