"""How busy the machine's processors are, and how much of them its host gives to others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

# Of the first line of /proc/stat (proc(5)): user nice system idle iowait irq softirq steal.
_IDLE = (3, 4)
_STEAL = 7
_FIELDS = 8


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Since the machine has started, in ticks of all processors together: worked, stolen by the host, and in all."""

    worked: int
    stolen: int
    total: int

    @classmethod
    def now(cls) -> Self:
        """Read it."""
        first_line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
        ticks = [int(field) for field in first_line.split()[1 : 1 + _FIELDS]]
        idle = sum(ticks[field] for field in _IDLE)
        return cls(sum(ticks) - idle - ticks[_STEAL], ticks[_STEAL], sum(ticks))

    def since(self, earlier: ProcessorTime) -> ProcessorTime:
        """Return what has come since then."""
        return ProcessorTime(
            self.worked - earlier.worked, self.stolen - earlier.stolen, max(1, self.total - earlier.total)
        )

    @property
    def busy_percent(self) -> float:
        """The part in which they worked."""
        return 100 * self.worked / self.total

    @property
    def stolen_percent(self) -> float:
        """The part in which they had work and the host gave them no time."""
        return 100 * self.stolen / self.total
