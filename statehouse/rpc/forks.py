"""Whether gRPC works in this process: it does not in one that was forked while gRPC had threads.

`fork` copies a process's memory, and one of its threads. What gRPC's own threads held, and were to do, is lost: calls
in the new process never end, and neither do their deadlines. gRPC's remedy, GRPC_ENABLE_FORK_SUPPORT, doesn't cover
asyncio, nor programs that have threads in gRPC's queues at that moment. So the new process hears of it before it waits
for anything.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from statehouse.errors import UsageError

REMEDY: Final = (
    "use clients for the first time after the fork, in each process, or start processes with 'spawn' or 'forkserver'"
)
_TASKS: Final = Path("/proc/self/task")
_THREADS: Final = frozenset({"grpc_global_tim", "event_engine", "lifeguard"})
"""Names of gRPC's threads, as Linux shows them."""
_ENDS_WITHIN_S: Final = 0.5
"""How long a fork waits for the threads of channels that are closed; they take some milliseconds."""
_LOOKS_EVERY_S: Final = 0.002


class _Process:
    """What is known of this process, and of the one that it was forked from."""

    def __init__(self) -> None:
        self.may_end = False
        """Whether channels were closed since the last fork, so that gRPC's threads may be about to end."""
        self.has_begun = False
        self._is_forked_in_use = False
        self.in_use_in: int | None = None
        """The process that this one was forked from, if gRPC had threads there."""

    def before(self) -> None:
        """See whether gRPC has threads, in the process that is about to be forked."""
        self._is_forked_in_use = self._has_threads()
        if self._is_forked_in_use and self.may_end:
            self.may_end = False
            gc.collect()  # a channel ends when nothing refers to it any more
            give_up_at = time.monotonic() + _ENDS_WITHIN_S
            while self._is_forked_in_use and time.monotonic() < give_up_at:
                time.sleep(_LOOKS_EVERY_S)
                self._is_forked_in_use = self._has_threads()

    def in_child(self) -> None:
        """Remember it, in the new process."""
        if self._is_forked_in_use:
            self.in_use_in = os.getppid()

    def _has_threads(self) -> bool:
        try:
            tasks = list(_TASKS.iterdir())
        except OSError:
            return self.has_begun  # not Linux
        for task in tasks:
            with suppress(OSError):  # a thread that has ended meanwhile
                if (task / "comm").read_text().strip() in _THREADS:
                    return True
        return False


_process = _Process()
os.register_at_fork(before=_process.before, after_in_child=_process.in_child)


def use() -> None:
    """Note that gRPC is about to be used.

    Raises:
        UsageError: gRPC doesn't work in this process.

    """
    if _process.in_use_in is not None:
        raise UsageError(
            f"this process was forked from process {_process.in_use_in}, in which gRPC was in use, so that gRPC "
            f"doesn't work in this one: {REMEDY}"
        )
    _process.has_begun = True


def channel_closed() -> None:
    """Note that a channel has been closed."""
    _process.may_end = True


def forked(pid: int) -> UsageError:
    """Return the error of using what process `pid` has connected."""
    return UsageError(
        f"this process was forked from process {pid}, in which this client was in use, and a client's connections "
        f"don't outlive a fork: {REMEDY}"
    )
