"""The folder of a Unix socket that only this user can reach."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from statehouse.errors import ConfigurationError

_PREFIX: Final = "statehouse-"
_SOCKET: Final = "socket"
# sun_path of unix(7), whose last byte is 0.
_PATH_MAX_BYTES: Final = 107


class SocketFolder:
    """A new folder, of mode 0700, with room for one socket at `path`. Those that killed processes left are removed."""

    def __init__(self) -> None:
        """Make the folder.

        Raises:
            ConfigurationError: there is no place for it.

        """
        for each in _places():
            _remove_left(each)
        self._folder, self._lock = _make(_places())
        self.path = self._folder / _SOCKET

    def close(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _places() -> list[Path]:
    """Return the folders that may hold ours, the best first."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return [*([runtime] if runtime.is_absolute() else []), Path(tempfile.gettempdir())]


def _make(places: list[Path]) -> tuple[Path, int | None]:
    """Return a new folder in one of the places, and the lock by which others see that it is in use."""
    problem = ""
    for place in places:
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
        except OSError as error:
            problem = str(error)
            continue
        if len(os.fsencode(folder / _SOCKET)) <= _PATH_MAX_BYTES:
            return folder, _locked(folder)
        folder.rmdir()
        problem = f"{place} is too long a path for a socket in it"
    raise ConfigurationError(
        f"there is no place for the socket behind the proxy ({problem}): set TMPDIR to a shorter path of a folder that "
        "can be written to"
    )


def _locked(folder: Path) -> int | None:
    """Return the open folder with a lock of ours; None if others have one."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in place.glob(f"{_PREFIX}[0-9]*-*"):
        with contextlib.suppress(OSError):  # another process may remove it as well
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            found = folder.lstat()
            is_ours = pid.isdecimal() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not is_ours or Path(f"/proc/{pid}").exists():
                continue
            # A process of another container, whose pids we don't see, holds its lock.
            if (lock := _locked(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
