"""Unix sockets between Spark's JVM and its Python workers, in a directory that nobody else can enter.

They are faster than TCP, and Spark can use them (SPARK-51688), but leaves three things to us. The first is the
directory, because with Unix sockets there is no secret to ask for. The second is what a crash leaves in it. The third
are the names of sockets that are gone: the JVM keeps them for its exit, for ever (`File.deleteOnExit`).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError

log = structlog.get_logger(__name__)

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
DIRECTORY: Final = "spark.python.unix.domain.socket.dir"
_PREFIX: Final = "statehouse-sockets-"
_LONGEST_PATH: Final = 61
"""Spark takes no longer one: a socket's path has 104 bytes at most, of which its name takes 43."""
_NAME: Final = re.compile(r"\.[0-9a-f-]{36}\.sock")
"""What Spark calls a socket."""
_SHORT_PARENT: Final = "/tmp"  # noqa: S108 - the directory in it is ours alone
_SETTLED_S: Final = 60.0


def socket_conf() -> dict[str, str]:
    """Make the directory, until this process ends, and return the settings that have Spark use it.

    Directories of processes that are gone are removed. Where none can be made there are no settings: Spark keeps TCP.
    """
    try:
        directory = _made()
    except OSError as error:
        log.warning("Python workers are reached over TCP: no directory for Unix sockets", error=str(error))
        return {}
    return {ENABLED: "true", DIRECTORY: directory}


def _made() -> str:
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent / f"{_PREFIX}12345678")) > _LONGEST_PATH:
        parent = Path(_SHORT_PARENT)
    remove_left_behind(parent)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)  # its mode is 0700
    _lock(Path(directory))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked ends, too
        shutil.rmtree(directory, ignore_errors=True)


def remove_left_behind(parent: Path) -> None:
    """Remove the directories of this user's processes that ended without removing theirs."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            found = directory.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > _SETTLED_S:
                os.close(_lock(directory))
                shutil.rmtree(directory)
                log.info("sockets of a process that is gone are removed", directory=str(directory))
        except OSError:  # its process lives, or another one was faster
            continue


def _lock(directory: Path) -> int:
    """Lock a directory for as long as the returned descriptor is open.

    Raises:
        OSError: a process that lives has locked it.

    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def forget_gone(jvm: Any, directory: str) -> None:  # noqa: ANN401 - py4j's view of the JVM
    """Have the JVM forget the sockets that are gone, whose names it keeps to delete them at its exit.

    A batch with Python state adds several of them: without this a driver would lose some hundred MB in a day. The JVM
    has no public way to it. Its set is replaced, never changed: another thread may be adding to it. A name that is
    added just then is lost, and that file stays when the JVM ends.
    """
    try:
        field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
        field.setAccessible(True)
        kept = jvm.java.util.LinkedHashSet()
        for name in jvm.java.lang.String.join("\n", field.get(None)).split("\n"):
            path = Path(name)
            is_ours = path.parent == Path(directory) and _NAME.fullmatch(path.name)
            if name and not (is_ours and not path.exists()):
                kept.add(name)
        field.set(None, kept)
    except Py4JError as error:  # the set was being added to: it is tried again
        log.warning("the JVM's names of old sockets can't be read at the moment", error=str(error).splitlines()[0])
