"""Work that goes on while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDS_WITHIN_S = 60.0


class Meanwhile:
    """Work on a thread of its own. `work` is given what is set when it has to end."""

    def __init__(self, work: Callable[[threading.Event], None], name: str) -> None:
        self._work, self._stop = work, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self.defect: Exception | None = None
        """What the work has raised."""

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except Exception as error:  # noqa: BLE001 - raised where it ends
            self.defect = error

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Have it go on in the context. Raise what it has raised."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(_ENDS_WITHIN_S)
        if self.defect is not None:
            raise self.defect
