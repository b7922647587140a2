"""Several router processes on one port: the kernel spreads the connections over them (SO_REUSEPORT).

One Python process uses one processor. Workers share nothing: each follows the control topics, and has its own routing
table, bounds and metrics.

The parent serves nothing. It holds the port, so that neither another router nor another set of workers takes it by
mistake, and starts the workers. It replaces a worker that ends by itself, after a pause that doubles until a worker
lives long. If a worker can't run with its settings, all end: the next one could not run either. Workers end when the
pipe to their parent closes: when the parent stops, and also when it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Final

import structlog

from statehouse.backoff import Backoff, BackoffPolicy
from statehouse.errors import ConfigurationError
from statehouse.observability import logs
from statehouse.rpc.listening import cant_listen
from statehouse.settings import ENV_PREFIX, RouterSettings
from statehouse.waiting import is_set_within

log = structlog.get_logger(__name__)

BAD_SETTINGS: Final = 2
"""Exit code of a worker that can't run with its settings."""
_REPLACEMENTS: Final = BackoffPolicy("worker", first_s=0.1, longest_s=10.0)
# A worker that lived this long did not end because of a failure at its start.
_STEADY_S: Final = 60.0
# Longer than a worker takes to let its calls end.
_STOP_TIMEOUT_S: Final = 15.0


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
        # Lets it bind despite an earlier router's connections; unset at once, because it would let others in.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        raise cant_listen(f"{host}:{port}", error) from error
    return held


def settings_of_worker(settings: RouterSettings, number: int, port: int) -> RouterSettings:
    """Return the settings of worker `number` (from 0): the shared port, and a metrics port of its own."""
    metrics_port = settings.metrics_port and settings.metrics_port + number
    return settings.model_copy(update={"router_port": port, "metrics_port": metrics_port, "workers": 1})


def environment_of(settings: RouterSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these settings and no others."""
    kept = {name: value for name, value in environment.items() if not name.startswith(ENV_PREFIX)}
    said = {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in settings if value is not None}
    return kept | said


async def keep(settings: RouterSettings, number: int, stop: asyncio.Event) -> None:
    """Run a worker, again and again, until `stop` is set.

    Raises:
        ConfigurationError: it can't run with its settings.

    """
    loop = asyncio.get_running_loop()
    environment = environment_of(settings, os.environ)
    backoff = Backoff(_REPLACEMENTS)
    while not stop.is_set():
        started_at = loop.time()
        try:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "router.worker", str(number), stdin=asyncio.subprocess.PIPE, env=environment
            )
        except OSError as error:  # no memory, process or file for it now
            pause_s = backoff.failed()
            log.error("worker can't be started, trying again", worker=number, error=str(error), pause_s=pause_s)  # noqa: TRY400 - as a worker that has ended
            await is_set_within(stop, pause_s)
            continue
        await _ended(worker, stop)
        if stop.is_set():
            break
        if worker.returncode == BAD_SETTINGS:
            stop.set()
            raise ConfigurationError(f"worker {number} can't run with these settings; its own message says why")
        if loop.time() - started_at > _STEADY_S:
            backoff.succeeded()
        pause_s = backoff.failed()
        log.error("worker has ended and is replaced", worker=number, exit_code=worker.returncode, pause_s=pause_s)
        await is_set_within(stop, pause_s)


async def _ended(worker: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    """Return once a worker has ended, by itself or because `stop` was set."""
    end, told = asyncio.ensure_future(worker.wait()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({end, told}, return_when=asyncio.FIRST_COMPLETED)
        assert worker.stdin is not None  # noqa: S101 - a pipe was asked for
        worker.stdin.close()
        await asyncio.wait({end}, timeout=_STOP_TIMEOUT_S)
    finally:
        told.cancel()
        if not end.done():
            worker.kill()
        await end


def run_workers(settings: RouterSettings) -> None:
    """Run workers until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the port is taken, or the workers can't run with these settings.

    """
    logs.configure(settings.log_level)

    async def main() -> None:
        stop = asyncio.Event()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
        with hold_port(settings.bind_host, settings.router_port) as held:
            port = held.getsockname()[1]
            log.info("workers share a port", address=f"{settings.bind_host}:{port}", workers=settings.workers)
            kept = (keep(settings_of_worker(settings, each, port), each, stop) for each in range(settings.workers))
            outcomes = await asyncio.gather(*kept, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    asyncio.run(main())
