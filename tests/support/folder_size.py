"""What a folder takes of the disk."""

from __future__ import annotations

from pathlib import Path


def size_of(directory: Path) -> int:
    """Return what a directory that changes meanwhile takes of the disk."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
