"""`python -m router.worker NUMBER`: one of several router processes on a port. `workers.py` starts it."""

from __future__ import annotations

import sys

import structlog

from router.child_processes import BAD_SETTINGS, stop_with_parent
from router.server import run
from statehouse.errors import ConfigurationError
from statehouse.settings import RouterSettings, load


def main(number: str) -> None:
    """Serve until the parent stops."""
    structlog.contextvars.bind_contextvars(worker=int(number))
    try:
        run(load(RouterSettings, {}), share_port=True, also_stopped_by=stop_with_parent)
    except ConfigurationError as error:
        sys.stderr.write(f"error: worker {number}: {error}\n")
        sys.exit(BAD_SETTINGS)


if __name__ == "__main__":
    main(sys.argv[1])
