"""Keys from a terminal: an arrow is one key, and no Escape."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest

from statehouse.cli.keys import ESCAPE, pressed_keys


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    ours, theirs = pty.openpty()
    with open(theirs, closefd=True) as stdin:  # noqa: PTH123 - it has no name
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        (ESCAPE, [ESCAPE]),
        (ESCAPE * 3, [ESCAPE, ESCAPE]),
        ("\x1b[Aq", ["\x1b[A", "q"]),
        ("\x1bOQ", ["\x1bOQ"]),
        ("\x1b[15~\x1b[1;5D", ["\x1b[15~", "\x1b[1;5D"]),
        ("\x1b[" + "1" * 30, ["\x1b[" + "1" * 14, *"1" * 16]),
        ("\x1bx", ["\x1bx"]),
    ],
)
def test_only_a_lone_escape_is_escape(keyboard: int, sent: str, keys: list[str]) -> None:
    with pressed_keys() as key:
        os.write(keyboard, sent.encode())
        pressed = [key(5.0)]
        while more := key(0.0):
            pressed.append(more)
    assert pressed == keys
