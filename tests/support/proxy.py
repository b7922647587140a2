"""The proxy that `make tools` builds, and those that run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.fleet import ServerProcess

PROXY: Final = Path(__file__).parents[2] / ".tools" / "bin" / "statehouse-proxy"


def proxy_of(process: ServerProcess | int) -> int:
    """Return the pid of the proxy that a process has started."""
    pid = process if isinstance(process, int) else process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [int(each) for each in children if Path(f"/proc/{each}/comm").read_text().startswith("statehouse-prox")]
    return found
