"""The proxy that `make tools` builds, and the proxies that run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.tools import TOOLS

PROXY: Final = TOOLS / "bin" / "statehouse-proxy"


def children_of(pid: int) -> set[int]:
    """Return the pids of the processes that a process has started, and not yet reaped."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def proxy_of(pid: int) -> int:
    """Return the pid of the proxy that a process has started."""
    named = (each for each in children_of(pid) if Path(f"/proc/{each}/comm").read_text().startswith("statehouse-prox"))
    (found,) = named
    return found
