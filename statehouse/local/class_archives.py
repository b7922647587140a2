"""Archives of the classes that a Java program loads: with one, its start maps them instead of reading jars.

Java makes such an archive itself, at the end of a run that loads the classes (JEP 350: dynamic archives of "application
class data sharing"). It takes one of another Java or other jars for none, and starts as usual. But one that was cut off
crashes it (JDK 17: SIGBUS), so a file's name has its size, and an option makes Java verify the checksums of the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statehouse.local.errors import ArchiveFailed
from statehouse.local.jars import default_cache_dir, waiting_lock
from statehouse.local.java import run_quietly

_FOLDER: Final = "class-archives"
_UNDER_WAY: Final = "making-"
_NAME: Final = re.compile(r"(?P<program>.+)-(?P<key>[0-9a-f]{12})-(?P<size>\d+)\.jsa")
# Each is of one Java and one installation of Spark, and takes some 200 MB. People have few of both.
_KEPT_MAX: Final = 3
# Tenths of a second; longer with idle priority on a busy machine.
_TRIED_WITHIN_S: Final = 300
# Options by which people choose an archive themselves, or make one.
_CHOSEN_BY: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive", "-Xshare:")
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A file that decides whether an archive fits: of Java itself, or a jar. `mtime_s` is seconds since 1970."""

    path: str
    size: int
    mtime_s: int


def archive_key(files: Iterable[ProgramFile]) -> str:
    """Return what archives of these files have in their names. The order of the files doesn't matter."""
    lines = sorted(f"{file.path}\0{file.size}\0{file.mtime_s}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def archive_name(program: str, key: str, size: int) -> str:
    """Return the name of an archive of `size` bytes."""
    return f"{program}-{key}-{size}.jsa"


def is_whole(name: str, size: int) -> bool:
    """Whether a file of `size` bytes is an archive, and all of it."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found["size"]) == size


def using(archive: Path) -> list[str]:
    """Return the options with which Java takes an archive, and says nothing if it can't."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-XX:+VerifySharedSpaces", *_QUIET]


def making(archive: Path) -> list[str]:
    """Return the options with which Java writes an archive at its end. It would name each class that it leaves out."""
    return [f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def is_chosen(options: Iterable[str]) -> bool:
    """Whether somebody's options of Java say which archive it takes."""
    return any(chosen in text for text in options for chosen in _CHOSEN_BY)


def joined(ours: Sequence[str], theirs: str) -> str:
    """Return options as one text, quoted as in a shell. Where two contradict each other Java takes the last: theirs."""
    return " ".join(filter(None, (shlex.join(ours), theirs)))


@dataclass(frozen=True, slots=True)
class ClassArchives:
    """The archives of one program, in the cache; those of other programs and versions are next to them.

    Attributes:
        program: its name.
        java: the Java that runs it.
        jars: its class path.
        cache_dir: the cache; None is the one of `default_cache_dir`.

    """

    program: str
    java: Path
    jars: Sequence[Path]
    cache_dir: Path | None = None

    def find(self) -> Path | None:
        """Return the program's archive; None if there is none, or only a part of it."""
        for path in self._folder.glob(f"{self.program}-{self._key()}-*.jsa"):
            with contextlib.suppress(OSError):  # another process has removed it
                # Java would take a separator for the end of the path.
                if is_whole(path.name, path.stat().st_size) and os.pathsep not in str(path):
                    return path
        return None

    def options(self, given: Iterable[str]) -> list[str]:
        """Return options of Java that have it use the archive: none if there is none, or the options `given` choose."""
        found = None if is_chosen(given) else self.find()
        if found is None:
            return []
        with contextlib.suppress(OSError):  # a cache that is not ours to write
            os.utime(found)  # so that it is kept: see _forget_old
        return using(found)

    def make(self, train: Callable[[Path, Path], None]) -> Path:
        """Return the program's archive; if there is none, make it.

        `train(archive, log)` runs the program so that Java writes the archive, and what the program says to the log.
        One process at a time makes archives; others wait for it. What another one left half done is removed.

        Raises:
            LocalError: the training failed or made none, or Java doesn't take it.

        """
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(folder / ".lock"):
            found = self.find()
            if found is not None:
                return found
            for left in folder.glob(f"{_UNDER_WAY}*"):  # by a process that was killed: this one has the lock
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=_UNDER_WAY, dir=folder, ignore_cleanup_errors=True) as scratch:
                made, log = Path(scratch) / "classes.jsa", folder / f"{self.program}.log"
                log.unlink(missing_ok=True)
                train(made, log)
                self._check(made)
                target = folder / archive_name(self.program, self._key(), made.stat().st_size)
                made.rename(target)
            self._forget_old(target)
        return target

    @property
    def _folder(self) -> Path:
        return (self.cache_dir or default_cache_dir()) / _FOLDER

    def _key(self) -> str:
        java = self.java.resolve()
        files = (java, java.parent.parent / "lib" / "modules", *self.jars)
        return archive_key(file for path in files if (file := _program_file(path)) is not None)

    def _check(self, made: Path) -> None:
        """Return once the archive is on the disk, and Java starts with it."""
        try:
            with made.open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise ArchiveFailed(
                self.program,
                "Java wrote none. Only HotSpot does, and only if no folder with files is on the class path, as with "
                "SPARK_CONF_DIR or HADOOP_CONF_DIR",
            ) from None
        try:
            tried = run_quietly([str(self.java), *using(made), "-version"], _TRIED_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ArchiveFailed(self.program, f"Java didn't start with it in {_TRIED_WITHIN_S} s") from error
        if tried.returncode:
            said = tried.stdout.decode(errors="replace").strip()[:500]
            raise ArchiveFailed(self.program, f"Java didn't start with it: {said}")

    def _forget_old(self, newest: Path) -> None:
        """Remove archives, but the last used ones. A process that has mapped one keeps it until its end."""
        others = [path for path in self._folder.glob("*.jsa") if path != newest]
        for path in sorted(others, key=_used_at, reverse=True)[_KEPT_MAX - 1 :]:
            path.unlink(missing_ok=True)


def make_in_background(module: str) -> subprocess.Popen[bytes]:
    """Start a module that makes an archive, with processor time that nothing else wants; it ends on its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, "--idle"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _program_file(path: Path) -> ProgramFile | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Whole seconds, as Java compares them: the layers of a container's image keep no more.
    return ProgramFile(str(path), found.st_size, int(found.st_mtime))


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
