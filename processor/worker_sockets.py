"""Unix sockets between Spark's JVM and its Python workers, in a directory that nobody else can enter.

Over TCP a Python task lasts some 40 ms longer than its work: one side waits for an acknowledgement that the other one
delays. Unix sockets have no such thing, and Spark can use them (SPARK-51688), but leaves three things to us: the
directory, because with Unix sockets there is no secret to ask for; what a crash leaves in it; and the names of sockets
that are gone, which the JVM keeps for its exit, for ever (`File.deleteOnExit`).
"""

from __future__ import annotations

import atexit
import fcntl
import os
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
_LONGEST_PATH: Final = 65
"""A socket's path has 104 bytes at most; Spark adds a name of 39."""
_SHORT_PARENT: Final = "/tmp"  # noqa: S108 - the directory in it is ours alone
_SETTLED_S: Final = 60.0


def socket_conf() -> dict[str, str]:
    """Make the directory, until this process ends, and return the settings that have Spark use it.

    Directories of processes that are gone are removed.
    """
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent / f"{_PREFIX}12345678")) > _LONGEST_PATH:
        parent = Path(_SHORT_PARENT)
    remove_left_behind(parent)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)  # its mode is 0700
    _lock(Path(directory))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return {ENABLED: "true", DIRECTORY: directory}


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
    """Have the JVM forget the names in the directory that it keeps to delete them at its exit.

    A batch with Python state adds several of them: without this a driver would lose some hundred MB in a day. The JVM
    has no public way to it. The set is replaced, never changed: another thread may be adding to it. What is lost by
    that is the deletion of files at the exit, and the directory is removed then anyway.
    """
    try:
        field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
        field.setAccessible(True)
        kept = jvm.java.util.LinkedHashSet()
        for name in jvm.java.lang.String.join("\n", field.get(None)).split("\n"):
            if name and not name.startswith(f"{directory}/"):
                kept.add(name)
        field.set(None, kept)
    except Py4JError as error:  # the set was being added to: it is tried again
        log.debug("the JVM's names of old sockets can't be read at the moment", error=str(error))
