"""Shortens Spark's failures for people."""

from __future__ import annotations

import re
from typing import Final

_REASON_LINES_MAX: Final = 8
_RAISED_BY_PYTHON: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)


def beginning(reason: object) -> str:
    """Return the first lines of a failure's text; the stacks of three programs that follow are in Spark's log.

    For an exception in a Python worker, return the line below the last traceback.
    """
    raised = _RAISED_BY_PYTHON.findall(str(reason))
    if raised:
        return str(raised[-1])
    return "\n".join(str(reason).splitlines()[:_REASON_LINES_MAX])
