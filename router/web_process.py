"""`python -m router.web_process`: the web process of a router. `web.py` says how it is started."""

from __future__ import annotations

import sys

from router.child_processes import BAD_SETTINGS, stop_with_parent
from statehouse.errors import ConfigurationError
from statehouse.settings import WebSettings, load
from statehouse.web.server import run


def main() -> None:
    """Serve until the parent stops."""
    try:
        run(load(WebSettings, {}), also_stopped_by=stop_with_parent)
    except ConfigurationError as error:
        sys.stderr.write(f"error: http: {error}\n")
        sys.exit(BAD_SETTINGS)


if __name__ == "__main__":
    main()
