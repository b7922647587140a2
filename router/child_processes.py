"""Child processes that a router starts, and replaces when they end on their own.

They end when the pipe to their parent closes: when the parent stops, and also when it is killed. A word in it before
asks them to take their leave.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from statehouse.errors import ConfigurationError
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.waiting import StopSignals, first_of, is_set_within
from statehouse.settings import ENV_PREFIX, DeclaredSettings

log = structlog.get_logger(__name__)

BAD_SETTINGS: Final = 2
"""Exit code of a child that can't run with its settings."""
_REPLACEMENTS: Final = BackoffPolicy("child", first_s=0.1, longest_s=10.0)
# A child that lived this long did not end because of a failure at its start.
_STEADY_S: Final = 60.0
# Longer than a child takes to let its calls end.
_STOP_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process to keep.

    Attributes:
        name: for people.
        arguments: after Python's own name.
        needed: if it can't run with its settings, its parent can't go on either.

    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    needed: bool


def environment_of(settings: DeclaredSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these settings and no others."""
    kept = {name: value for name, value in environment.items() if not name.startswith(ENV_PREFIX)}
    said = {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in settings if value is not None}
    return kept | said


async def keep(child: ChildProcess, stop: StopSignals, *, goes_on_s: float = 0.0) -> None:
    """Run a child, again and again, until `stop` asks for the end; with a pause that doubles until one lives long.

    `goes_on_s`: how long it may take its leave, unless it is to end immediately. Afterwards it lets its calls end.

    Raises:
        ConfigurationError: one that is needed can't run with its settings.

    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(_REPLACEMENTS)
    while not stop.asked.is_set():
        started_at = loop.time()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *child.arguments, stdin=asyncio.subprocess.PIPE, env=child.environment
            )
        except OSError as error:  # no memory, process or file for it now
            pause_s = backoff.failed()
            log.error("process can't be started, trying again", process=child.name, error=str(error), pause_s=pause_s)  # noqa: TRY400 - as one that has ended
            await is_set_within(stop.asked, pause_s)
            continue
        await _ended(process, stop, goes_on_s)
        if stop.asked.is_set():
            break
        if child.needed and process.returncode == BAD_SETTINGS:
            stop.now()
            raise ConfigurationError(f"{child.name} can't run with these settings; its own message says why")
        if loop.time() - started_at > _STEADY_S:
            backoff.succeeded()
        pause_s = backoff.failed()
        log.error(
            "process has ended and is replaced", process=child.name, exit_code=process.returncode, pause_s=pause_s
        )
        await is_set_within(stop.asked, pause_s)


def stop_with_parent(stop: StopSignals) -> None:
    """Stop immediately when the parent closes its end of the pipe, or is gone; take one's leave when it writes."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def told() -> None:
        if os.read(pipe, 1):
            stop.asked.set()
        else:
            loop.remove_reader(pipe)
            stop.now()

    loop.add_reader(pipe, told)


async def _ended(process: asyncio.subprocess.Process, stop: StopSignals, goes_on_s: float) -> None:
    """Return once a process has ended, on its own or because `stop` asked for it."""
    end = asyncio.ensure_future(process.wait())
    try:
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        await first_of(end, stop.asked)
        if goes_on_s and not end.done():
            process.stdin.write(b"\n")
            await first_of(end, stop.at_once, goes_on_s)
        process.stdin.close()
        await asyncio.wait({end}, timeout=_STOP_TIMEOUT_S)
    finally:
        if not end.done():
            with suppress(ProcessLookupError):  # it has just ended, and nobody knows it yet
                process.kill()
        await end
