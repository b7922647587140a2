"""Where in people's own code something happened: their file and line, and not those of libraries below it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from linecache import getline

from processor.spark.failures import own


@dataclass(frozen=True, slots=True)
class Place:
    """A statement in a file.

    Attributes:
        file: its path.
        line: of the call, counted from 1.
        last_line: where the call ends.

    """

    file: str
    line: int
    last_line: int

    def __str__(self) -> str:
        """Return `file:line`; a file below the working directory without the directory's path."""
        relative = os.path.relpath(self.file)
        return f"{self.file if relative.startswith(os.pardir) else relative}:{self.line}"

    def naming(self, name: str, line_of: Callable[[str, int], str] = getline) -> Place:
        """Return the place of the line, within the call, that has the name in quotes or as an attribute."""
        named = re.compile(rf"""(["'`.]){re.escape(name)}\b""")
        for line in range(self.line, self.last_line + 1):
            if named.search(line_of(self.file, line)):
                return Place(self.file, line, self.last_line)
        return self

    def is_own(self) -> bool:
        """Whether it is in a file of people's own code."""
        return own([self.file], str) is not None

    def code(self) -> str:
        """Return the line's text; empty if the file can't be read."""
        return getline(self.file, self.line).strip()


def raised_at(error: BaseException) -> Place | None:
    """Return where people's code raised an exception, or called what did; for a syntax error, where that is."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return Place(error.filename, error.lineno or 1, error.end_lineno or error.lineno or 1)
    return _place(traceback.extract_tb(error.__traceback__))


def called_at() -> Place | None:
    """Return where people's code made the call under way."""
    summary = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe()), lookup_lines=False)  # noqa: SLF001 - the documented way to the stack
    return _place(list(summary)[::-1])


def _place(frames: Iterable[traceback.FrameSummary]) -> Place | None:
    found = own(list(frames), lambda frame: frame.filename)
    if found is None or found.lineno is None:
        return None
    return Place(found.filename, found.lineno, max(found.lineno, found.end_lineno or 0))
