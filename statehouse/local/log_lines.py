"""Reads the logs of a local cluster's parts: their last lines, and those that are added; without Spark's chatter."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Final

from statehouse.local.errors import LocalError

LOGS: Final = "logs"
"""The folder in a run directory."""

_BLOCK: Final = 64 * 1024
# One read takes at most so many bytes; a line may be that long.
_READ_MAX: Final = 1024 * 1024
# The log of Kafka's part is its starter's; the broker itself writes this one.
_BROKER_LOG: Final = Path("kafka") / "broker.log"
# What Spark and its Python workers say at each start, and for each task, of themselves. None of it is news.
_CHATTER: Final = re.compile(
    r"""\s*$
    |Using\ Spark's\ default\ log4j\ profile:
    |Setting\ (default|Spark)\ log\ level\ to\ "
    |To\ adjust\ logging\ level\ use\ sc\.setLogLevel
    |WARNING:\ Using\ incubator\ modules:
    |SLF4J:\ (Failed\ to\ load\ class|Defaulting\ to\ no-operation|See\ http)
    |[0-9/]+\ [0-9:]+\ WARN\ Utils:\ (Your\ hostname,|Set\ SPARK_LOCAL_IP)
    |[0-9/]+\ [0-9:]+\ WARN\ NativeCodeLoader:
    |(Starting\ )?Streaming\ \w+(\ Python)?\ worker\b""",
    re.VERBOSE,
)


def is_news(line: str) -> bool:
    """Whether a line of a log is more than what Spark says at each start, or its workers for each task."""
    return _CHATTER.match(line) is None


class NoLog(LocalError):
    """There is no log of this name."""


class FollowedLog:
    """A log from its last `last` lines on, or those of them that are shown. It may be missing, grow, and begin anew.

    Not thread-safe.
    """

    def __init__(self, path: Path, last: int, is_shown: Callable[[str], bool] = lambda _line: True) -> None:
        self._path, self._is_shown = path, is_shown
        self._file, self._at = _begin(path, last, is_shown)
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call; at the first, the last lines are the first ones."""
        try:
            with self._path.open("rb") as log:
                status = os.fstat(log.fileno())
                if status.st_ino != self._file or status.st_size < self._at:
                    self._file, self._at, self._rest = status.st_ino, 0, b""
                log.seek(self._at)
                read = log.read(_READ_MAX)
        except FileNotFoundError:
            return []
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        if len(self._rest) >= _READ_MAX:
            lines, self._rest = [*lines, self._rest], b""
        return list(filter(self._is_shown, map(_text, lines)))


def last_lines(path: Path, begin: int = 0) -> list[str]:
    """Return the lines in the last 64 kB of a log, and not before the byte `begin`; none if there is no log."""
    try:
        with path.open("rb") as log:
            log.seek(max(begin, log.seek(0, os.SEEK_END) - _BLOCK))
            return log.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def logs_of(run_dir: Path) -> Mapping[str, tuple[Path, ...]]:
    """Return the log files of a cluster's parts, by part."""
    found: dict[str, tuple[Path, ...]] = {path.stem: (path,) for path in sorted((run_dir / LOGS).glob("*.log"))}
    if "kafka" in found:
        found["kafka"] = (*found["kafka"], run_dir / _BROKER_LOG)
    return found


def chosen_logs(run_dir: Path, names: list[str]) -> Mapping[str, tuple[Path, ...]]:
    """Return the log files of these parts; of all if none is named.

    Raises:
        NoLog: a part has none.

    """
    found = logs_of(run_dir)
    unknown = [name for name in names if name not in found]
    if unknown or not found:
        there = f"there are logs of: {', '.join(found)}" if found else "nothing was started there"
        raise NoLog(f"{run_dir} has no log of {''.join(unknown[:1]) or 'any part'}; {there}.")
    return {name: found[name] for name in names} if names else found


def _begin(path: Path, last: int, is_shown: Callable[[str], bool]) -> tuple[int, int]:
    """Return a file's number, and where its last lines begin."""
    try:
        with path.open("rb") as log:
            end = at = log.seek(0, os.SEEK_END)
            begins: list[int] = []
            # The first line of a block may have begun before it.
            while at and len(begins) <= last + 1:
                at = max(0, at - max(_BLOCK, end - at))
                log.seek(at)
                begins = _beginnings(log.read(end - at), is_shown)
            begin = begins[-last - 1] if len(begins) > last else 0
            return os.fstat(log.fileno()).st_ino, at + begin
    except FileNotFoundError:
        return 0, 0


def _beginnings(block: bytes, is_shown: Callable[[str], bool]) -> list[int]:
    """Return where the lines of a block begin that are shown, and last where the one does that isn't complete yet."""
    *lines, _ = block.split(b"\n")
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
    return [begin for line, begin in zip(lines, begins, strict=False) if is_shown(_text(line))] + begins[-1:]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
