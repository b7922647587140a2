"""Wall clocks that a test sets: one for a process, and for the processes that it starts.

The machine's own clock stays as it is. A library of our own (wall_clock.c) is loaded before others, and adds
to what the C library says of the time of day; waits that go by the wall clock follow it. Programs in Go don't use the C
library: they keep the machine's clock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("wall_clock.c")
_NS: Final = 1_000_000_000


def built(directory: Path) -> Path:
    """Compile the library, and return it."""
    compiler, library = shutil.which("cc"), directory / "wall_clock.so"
    assert compiler is not None, "needs a compiler (Debian: apt-get install gcc libc6-dev)"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", library, _SOURCE], check=True)
    return library


class WallClock:
    """The wall clock of a process that `prefix` starts: put it before the command."""

    def __init__(self, library: Path, name: str) -> None:
        self._file = library.with_name(f"{name}.clock")
        self._file.write_bytes(struct.pack("=q", 0))
        self.prefix: Sequence[str] = ("env", f"LD_PRELOAD={library}", f"STATEHOUSE_WALL_CLOCK={self._file}")

    def set(self, ahead_s: int) -> None:
        """Set it ahead of the machine's, or behind it."""
        with self._file.open("r+b") as file:  # in place: processes have it in their memory
            file.write(struct.pack("=q", ahead_s * _NS))
