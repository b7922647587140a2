"""Shortens Spark's failures for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

RECORD_NOTE: Final = "while it processed record "
"""What a note of an exception begins with that names the record: topic, partition and offset follow."""

_REASON_LINES_MAX: Final = 8
_REASON_CHARACTERS_MAX: Final = 300
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)", re.MULTILINE)
_FRAME: Final = re.compile(r'^\s*File "([^"]+)", line (\d+), in ', re.MULTILINE)
_NOTE: Final = re.compile(rf"^{RECORD_NOTE}(\S+)$", re.MULTILINE)
_OF_SPARK: Final = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_OF_JAVA: Final = re.compile(r"^Caused by: (?:\w+\.)*(\w+)", re.MULTILINE)
_SAYS_NOTHING: Final = "STREAM_FAILED"
# Where people's own code isn't: Spark and its gateway, this package, what Python itself runs, installed packages.
_PACKAGE: Final = __file__.rpartition("/spark/")[0]
_OURS: Final = re.compile(rf"/(?:pyspark|py4j|processor/operators)/|^{re.escape(_PACKAGE)}/|<frozen ")
_INSTALLED: Final = re.compile(r"/(?:site-packages|dist-packages|lib/python[\d.]+)/")

Frame = TypeVar("Frame")


def beginning(reason: object) -> str:
    """Return the first lines of a failure's text; the stacks of three programs that follow are in Spark's log.

    For an exception in a Python worker, return the line below the last traceback.
    """
    raised = _TRACEBACK.findall(str(reason))
    if raised:
        return str(raised[-1][1])
    return "\n".join(str(reason).splitlines()[:_REASON_LINES_MAX])


def where_raised(reason: object) -> str:
    """Return the class of a failure's exception, where it was raised, and the record, as far as these are known.

    `ZeroDivisionError at topology.py:19, record orders/3/812`: the line is the last one of people's own code. Only an
    exception in a Python worker has a line; a failure of Spark's has the name that Spark gives to its kind, as
    DIVIDE_BY_ZERO. No message: it may show data of the record, and more people see this text than may see data.
    """
    text = str(reason)
    raised = _TRACEBACK.findall(text)
    if not raised:
        named = [each for each in _OF_SPARK.findall(text) if each != _SAYS_NOTHING] or _OF_JAVA.findall(text)[-1:]
        return str(named[0]) if named else type(reason).__name__
    frames, last = raised[-1]
    named = last.split(":", 1)[0].rsplit(".", 1)[-1].strip()
    found = own(_FRAME.findall(frames), lambda frame: str(frame[0]))
    place = f" at {found[0].rpartition('/')[2]}:{found[1]}" if found else ""
    records = _NOTE.findall(text)
    record = f", record {records[-1]}" if records else ""
    return f"{named}{place}{record}"[:_REASON_CHARACTERS_MAX]


def own(frames: Sequence[Frame], path: Callable[[Frame], str]) -> Frame | None:
    """Return the last frame of people's own code, else the last one of an installed package."""
    theirs = [frame for frame in frames if not _OURS.search(path(frame))]
    found = [frame for frame in theirs if not _INSTALLED.search(path(frame))] or theirs
    return found[-1] if found else None
