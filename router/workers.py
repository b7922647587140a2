"""Several router processes on one port: the kernel spreads the connections over them (SO_REUSEPORT).

One Python process uses one processor. Workers share nothing: each follows the control topics, and has its own routing
table, bounds and metrics.

The parent serves nothing. It holds the port, so that neither another router nor another set of workers takes it by
mistake, and starts the workers, and the one web process for all of them. If a worker can't run with its settings, all
end: the next one could not run either.

When the parent is asked to stop, the workers take their leave as a single router does. The web process goes on for as
long as there are workers.
"""

from __future__ import annotations

import asyncio
import os
import socket

import structlog

from router.child_processes import ChildProcess, environment_of, keep
from router.web import WebProcess
from statehouse.observability import logs
from statehouse.runtime.listening import cant_listen
from statehouse.runtime.waiting import stop_signals
from statehouse.settings import RouterSettings

log = structlog.get_logger(__name__)


def hold_port(host: str, port: int) -> socket.socket:
    """Take a free port (0: any) for processes that share it; return the socket that holds it.

    Nothing is accepted on it. As long as it is open only sockets with SO_REUSEPORT can be bound to the port, and a
    process that listens on its own is refused.

    Raises:
        ConfigurationError: the port is taken.

    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        # Processes that share the port would accept one more: only binding it exclusively finds them.
        with socket.create_server(address, family=family) as alone:
            address = alone.getsockname()
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Lets it bind despite an earlier router's connections; unset immediately, because it would let others in.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        raise cant_listen(f"{host}:{port}", error) from error
    return held


def settings_of_worker(settings: RouterSettings, number: int, port: int) -> RouterSettings:
    """Return the settings of worker `number` (from 0): the shared port, and a metrics port of its own."""
    metrics_port = settings.metrics_port and settings.metrics_port + number
    update = {"router_port": port, "metrics_port": metrics_port, "workers": 1, "http_port": None}
    if number > 0:
        update["verify_interval_ms"] = 0
    return settings.model_copy(update=update)


def worker_child(settings: RouterSettings, number: int, port: int) -> ChildProcess:
    """Return worker `number`, to be kept."""
    environment = environment_of(settings_of_worker(settings, number, port), os.environ)
    return ChildProcess(f"worker {number}", ("-m", "router.worker", str(number)), environment, needed=True)


def run_workers(settings: RouterSettings) -> None:
    """Run workers until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the port is taken, or the workers can't run with these settings.

    """
    logs.configure(settings.log_level)

    async def main() -> None:
        stop = stop_signals()
        with hold_port(settings.bind_host, settings.router_port) as held:
            port = held.getsockname()[1]
            log.info("workers share a port", address=f"{settings.bind_host}:{port}", workers=settings.workers)
            workers = [worker_child(settings, each, port) for each in range(settings.workers)]
            web = WebProcess(settings, port)
            web.start()
            goes_on_s = settings.lame_duck_ms / 1_000
            outcomes = await asyncio.gather(
                *(keep(each, stop, goes_on_s=goes_on_s) for each in workers), return_exceptions=True
            )
            await web.stop()
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    asyncio.run(main())
