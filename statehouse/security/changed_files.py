"""Notices that files have changed, in a process that should not have to be restarted for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

LOOKED_EVERY_S: Final = 1.0
"""How often the files are looked at, at most."""

FileStamp: TypeAlias = tuple[int, int, int, int]
"""What shows that a file has changed: when it was written and renamed, size, number."""


class ChangedFiles:
    """Some files, and how they were when they were last looked at. `clock`: monotonic seconds."""

    def __init__(self, files: Iterable[Path | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._files = [each.expanduser() for each in files if each is not None]
        self._clock = clock
        self._seen = self._stamps()
        self._looked_at = clock()

    def have_changed(self) -> bool:
        """Whether one differs from what it was when this last returned true, or at the beginning.

        Looks at most each `LOOKED_EVERY_S` seconds; in between nothing has changed.
        """
        now = self._clock()
        if now - self._looked_at < LOOKED_EVERY_S:
            return False
        self._looked_at = now
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        return True

    def _stamps(self) -> list[FileStamp | None]:
        return [stamp_of(each) for each in self._files]


def stamp_of(file: Path) -> FileStamp | None:
    """Return a file's stamp; None if there is none that could be looked at."""
    try:
        return stamp_in(file.stat())
    except (OSError, ValueError):  # ValueError: no name of a file
        return None


def stamp_in(found: os.stat_result) -> FileStamp:
    """Return the stamp in what the system says of a file."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
