"""Programs that have only so much memory, their part of the system's page cache included: control groups, version 1."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_ALL = Path("/sys/fs/cgroup/memory")


class MemoryLimit:
    """Programs that may take so many bytes together. It takes the rights of root."""

    def __init__(self, name: str, most_bytes: int) -> None:
        self._group = _ALL / name
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(most_bytes))

    def hold(self, pids: Iterable[int]) -> None:
        """Take processes in, with those that they start later. Files that they have read already count for nobody."""
        for pid in pids:
            (self._group / "cgroup.procs").write_text(str(pid))

    @property
    def most_used_bytes(self) -> int:
        """The most that they have taken."""
        return int((self._group / "memory.max_usage_in_bytes").read_text())

    def close(self) -> None:
        """Remove the limit; call it when the programs have ended."""
        self._group.rmdir()
