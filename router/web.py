"""The web process of a router: the page and the HTTP API.

A process of its own, so that no lookup waits for a page. A router goes on without it: lookups matter more, so one whose
port is taken is tried again, and the log says why.
"""

from __future__ import annotations

import os
from typing import Final

from router.child_processes import ChildProcess, environment_of, keep
from statehouse.errors import ConfigurationError
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.extras import ensure_installed
from statehouse.runtime.file_reads import PEM_BYTES_MAX, read
from statehouse.runtime.waiting import StopSignals
from statehouse.settings import RouterSettings, WebSettings

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 - read, not bound


def web_child(settings: RouterSettings, port: int) -> ChildProcess:
    """Return the web process of a router on this port, to be kept.

    Raises:
        ConfigurationError: a package that it needs isn't installed, or the router's certificate can't be read.

    """
    ensure_installed("http_port", "http")
    environment = environment_of(web_settings(settings, port), os.environ)
    return ChildProcess("http", ("-m", "router.web_process"), environment, needed=False)


class WebProcess:
    """The web process of a router on this port, kept from `start` to `stop`; none without `http_port`.

    Raises:
        ConfigurationError: as `web_child`.

    """

    def __init__(self, settings: RouterSettings, port: int) -> None:
        self._child = None if settings.http_port is None else web_child(settings, port)
        self._work, self._ends = BackgroundWork(), StopSignals()

    def start(self) -> None:
        """Start it. Call this on the event loop."""
        if self._child is not None:
            self._work.start(keep(self._child, self._ends), "keep the web process")

    async def stop(self) -> None:
        """End it, and wait for its end."""
        self._ends.now()
        await self._work.finish()


def web_settings(settings: RouterSettings, port: int) -> WebSettings:
    """Return the settings of the web process of a router on this port.

    Raises:
        ConfigurationError: the router's certificate can't be read.

    """
    host = _WILDCARDS.get(settings.bind_host, settings.bind_host)
    given = {name: getattr(settings, name) for name in WebSettings.declared() if hasattr(settings, name)}
    metrics = [f"{host}:{settings.metrics_port + each}" for each in range(settings.workers) if settings.metrics_port]
    return WebSettings(
        **given,
        router=f"{host}:{port}",
        router_metrics=",".join(metrics),
        tls_router_name=_name_for(settings, host.strip("[]")),
    )


def _name_for(settings: RouterSettings, host: str) -> str:
    """Return the name to check the router's certificate for, if it doesn't have this host: any that it has."""
    if settings.tls_certificate is None:
        return ""
    # Its library takes a fifth of a start, and most routers that have no TLS need none of it.
    from statehouse.security.certificates import hosts_of  # noqa: PLC0415

    path = settings.tls_certificate.expanduser()
    try:
        names = hosts_of(read(path, PEM_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"tls_certificate {path} can't be used: {error}") from error
    return "" if host in names or not names else names[0]
