"""`python -m router.worker NUMBER`: one of several router processes on a port. `workers.py` starts it."""

from __future__ import annotations

import asyncio
import sys

import structlog

from router.server import run
from router.workers import BAD_SETTINGS
from statehouse.errors import ConfigurationError
from statehouse.settings import RouterSettings, load


def _stop_with_parent(stop: asyncio.Event) -> None:
    """Set `stop` when the parent closes its end of the pipe, or is gone. Nothing is ever written to it."""
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)


def main(number: str) -> None:
    """Serve until the parent stops."""
    structlog.contextvars.bind_contextvars(worker=int(number))
    try:
        run(load(RouterSettings, {}), share_port=True, also_stopped_by=_stop_with_parent)
    except ConfigurationError as error:
        sys.stderr.write(f"error: worker {number}: {error}\n")
        sys.exit(BAD_SETTINGS)


if __name__ == "__main__":
    main(sys.argv[1])
