"""What a failure of Spark comes to, for people."""

from __future__ import annotations

import re
from typing import Final

_REASON_LINES_MAX: Final = 8
_RAISED_BY_PYTHON: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)


def beginning(reason: object) -> str:
    """Return what a reason comes to: Spark's go on with stacks of three programs, which its own log has.

    Of an exception in a Python worker it is the line below the last traceback, else the first lines.
    """
    raised = _RAISED_BY_PYTHON.findall(str(reason))
    if raised:
        return str(raised[-1])
    return "\n".join(str(reason).splitlines()[:_REASON_LINES_MAX])
