"""The proxy that `make tools` builds, and the processes that run: proxies, and what else a process has started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.tools import TOOLS

PROXY: Final = TOOLS / "bin" / "statehouse-proxy"


def children_of(pid: int) -> set[int]:
    """Return the pids of the processes that a process has started, and not yet reaped."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # threads come and go
            if thread.read_text().rpartition(")")[2].split()[0] != "T":
                return False
    return True


def proxy_of(pid: int) -> int:
    """Return the pid of the proxy that a process has started."""
    named = (each for each in children_of(pid) if Path(f"/proc/{each}/comm").read_text().startswith("statehouse-prox"))
    (found,) = named
    return found
