"""Background tasks on the event loop: each is referenced until it ends, and its error is logged.

The loop itself keeps only weak references to tasks. It reports a task's exception that nobody retrieved when the task
is garbage-collected, if ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from statehouse.errors import EngineError

# The standard library's logger: clients have no other, and services send its events to their own log.
_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundWork:
    """The background tasks of one owner. Lives on the event loop.

    The work handles its expected failures itself. Any exception that it raises is a defect and is logged.
    """

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks under way."""
        return len(self._under_way)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin work and return its task, which a caller may await. `name` stands in the log."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self) -> None:
        """Wait until all tasks have ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._under_way:
            task.cancel()
        await self.finish()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        log_defect(task)


def as_error(caught: BaseException) -> Exception:
    """Return what a thread, a handler or a step has caught, as an exception to report.

    A panic of native code is no `Exception`. A part that let it pass would end without a word to anybody.

    Raises:
        BaseException: `caught` itself, if it tells the caller to end.

    """
    if isinstance(caught, Exception):
        return caught
    if isinstance(caught, asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit):
        raise caught
    panic = EngineError(f"{type(caught).__name__}: {caught}")
    panic.__cause__ = caught
    return panic


def log_defect(ended: asyncio.Task[Any], failures: type[Exception] | tuple[type[Exception], ...] = ()) -> None:
    """Log an exception of a background task, except `failures`, which are no defects."""
    if ended.cancelled():
        return
    error = ended.exception()
    if error is not None and not isinstance(error, failures):
        _LOG.error("defect in background work: %s", ended.get_name(), exc_info=error)
