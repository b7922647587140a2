"""Clocks that a step of the wall clock doesn't move. No process of the fleet measures a time by the wall clock itself.

Wall clocks are set: by hand, by NTP after a long outage, by a virtual machine's host. A time that lies between two
readings of such a clock is wrong by the step. So a process measures times by a monotonic clock. It may need the time
of day, to compare it with what another process or an earlier one has written. Then it takes the time of day of its
start, and goes on from there by a monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it goes on while the machine sleeps


@dataclass(frozen=True, slots=True)
class MachineClock:
    """The time of day as a process has it.

    Attributes:
        boot_id: names the time from one start of the machine to its next; empty if it has no name.
        offset_ms: the time of day, in milliseconds since 1970, when `elapsed_ms()` was 0, by what the wall clock said
            when the process started.
        elapsed_ms: returns the milliseconds since the machine started; it never goes back.

    """

    boot_id: str
    offset_ms: int
    elapsed_ms: Callable[[], float]

    def now_ms(self) -> int:
        """Return the time of day, in milliseconds since 1970. A later reading is never less than an earlier one."""
        return self.offset_ms + int(self.elapsed_ms())


def machine_clock(wall_s: Callable[[], float] = time.time) -> MachineClock:
    """Return a clock that shows what the wall clock shows now, and goes on independently."""

    def elapsed_ms() -> float:
        return time.clock_gettime(_ELAPSED) * 1000

    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # not Linux
        boot_id = ""
    return MachineClock(boot_id, int(wall_s() * 1000 - elapsed_ms()), elapsed_ms)


@cache
def process_clock() -> MachineClock:
    """Return this process's clock: as the wall clock was when it was first asked for."""
    return machine_clock()
