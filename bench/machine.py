"""The machine, and what else it did while something was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from statehouse.local.java import find_java

_PROC: Final = Path("/proc")
# Fields of the first line of /proc/stat (proc(5)): user nice system idle iowait irq softirq steal.
_IDLE: Final = (3, 4)
_STEAL: Final = 7
_FIELDS: Final = 8


def describe() -> dict[str, Any]:
    """Return what the machine is and what runs on it, for a report."""
    lines = (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    return {
        "cores": os.cpu_count(),
        "model": models[0] if models else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0].split('"')[1],
    }


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Ticks of all processors together since the machine started: worked, stolen by the host, and in total."""

    worked: int
    stolen: int
    total: int

    @classmethod
    def now(cls) -> Self:
        """Read it."""
        first_line = (_PROC / "stat").read_text(encoding="ascii").splitlines()[0]
        ticks = [int(field) for field in first_line.split()[1 : 1 + _FIELDS]]
        idle = sum(ticks[field] for field in _IDLE)
        return cls(sum(ticks) - idle - ticks[_STEAL], ticks[_STEAL], sum(ticks))

    def since(self, earlier: ProcessorTime) -> ProcessorTime:
        """Return the ticks since then."""
        return ProcessorTime(
            self.worked - earlier.worked, self.stolen - earlier.stolen, max(1, self.total - earlier.total)
        )

    @property
    def busy_percent(self) -> float:
        """The share of the time in which the processors worked."""
        return 100 * self.worked / self.total

    @property
    def stolen_percent(self) -> float:
        """The share of the time in which the processors had work and the host gave them no time."""
        return 100 * self.stolen / self.total


class Watch:
    """Measures how busy the machine was over a time, and how much of that time the host took away."""

    def __init__(self) -> None:
        self._begin, self._load = ProcessorTime.now(), os.getloadavg()[0]

    def so_far(self) -> dict[str, float]:
        """Return the shares in percent, and the load average (one minute) at the begin and now."""
        spent = ProcessorTime.now().since(self._begin)
        return {
            "busy_percent": round(spent.busy_percent, 1),
            "stolen_percent": round(spent.stolen_percent, 1),
            "load_average_before": round(self._load, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
        }
