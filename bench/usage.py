"""The processor time and memory that processes and their children use, read from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statehouse.local.process import descendants, stat

_PROC: Final = Path("/proc")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, from the state on: utime stime cutime cstime; the last two are of children that have ended.
_TIMES: Final = slice(11, 15)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have taken since their start, in user and system mode."""
    return _TICK_S * sum(sum(_times(pid)) for pid in _family(pids))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in memory: RSS counts a shared page once for each process, PSS divides it among them."""

    rss: int
    pss: int

    @classmethod
    def of(cls, pids: Iterable[int]) -> Self:
        """Add up the memory of processes."""
        rss = pss = 0
        for pid in _family(pids):
            try:
                rollup = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
            except OSError:  # it has ended
                continue
            sizes = {words[0]: int(words[1]) for line in rollup.splitlines()[1:] if (words := line.split())}
            rss += 1024 * sizes["Rss:"]
            pss += 1024 * sizes["Pss:"]
        return cls(rss, pss)


def _family(pids: Iterable[int]) -> set[int]:
    return {member for pid in pids for member in (pid, *(child.pid for child in descendants(pid)))}


def _times(pid: int) -> list[int]:
    fields = stat(pid)
    return [] if fields is None else [int(field) for field in fields[_TIMES]]
