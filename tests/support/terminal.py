"""The `statehouse` command in a terminal of its own, as somebody sits before it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

_WIDTH, _HEIGHT = 160, 40


class Terminal:
    """The command, and what has been shown since what was last waited for."""

    def __init__(self, *words: str) -> None:
        self._ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (_HEIGHT, _WIDTH))
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
        self.before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "statehouse.cli", *words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        self.shown = ""

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        """Read until a text is there, after what was waited for before."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.shown[-2_000:]}"
            self.shown += os.read(self._ours, 65_536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self) -> int:
        """Return the exit code; the terminal must be as it was."""
        code = self.process.wait(60)
        assert termios.tcgetattr(self._theirs) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
        os.close(self._ours)
        os.close(self._theirs)
