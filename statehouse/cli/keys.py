"""Single keys from a terminal, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ESCAPE: Final = "\x1b"
"""The key, and what the sequences of arrows and other keys begin with."""
_REST_WITHIN_S: Final = 0.05
"""A terminal sends a sequence at once; only a slow network tears it."""
_SEQUENCE_MAX: Final = 16


@contextmanager
def pressed_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key, so many seconds at most, and returns it; "" if there was none.

    An arrow, and what else a terminal sends as a sequence, is one key, as the whole sequence. If stdin is no terminal
    there are no keys, and it only waits. The terminal is as before afterwards.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def key(seconds: float) -> str:
        pressed = byte(seconds)
        if pressed != ESCAPE:
            return pressed
        follows = byte(_REST_WITHIN_S)
        if follows not in {"[", "O"}:
            return pressed if follows == ESCAPE else pressed + follows
        pressed += follows
        while len(pressed) < _SEQUENCE_MAX and (more := byte(_REST_WITHIN_S)):
            pressed += more
            if "@" <= more <= "~":  # what a sequence ends with
                break
        return pressed

    def byte(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
