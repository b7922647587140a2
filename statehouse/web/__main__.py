"""`python -m statehouse.web`."""

from __future__ import annotations

from statehouse.cli.declared import run_alone, takes_settings
from statehouse.settings import LoadedSettings, WebSettings
from statehouse.web.server import run


@takes_settings(WebSettings)
def web(loaded: LoadedSettings[WebSettings]) -> None:
    """Serve the live page and the HTTP API of a fleet, in a process of its own, next to its routers.

    Every option can also be given as STATEHOUSE_<NAME> or in a TOML file. A router with --http-port starts this
    automatically.
    """
    run(loaded.settings)


if __name__ == "__main__":
    run_alone(web)
