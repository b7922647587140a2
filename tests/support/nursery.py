"""Starts our servers as forks of a process that has imported them.

Tests start hundreds, and imports are half of what a start takes. A server that is born here is a process of its own,
with its own arguments, variables, folder and output, as if its command had started it; it only skips the imports.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

MODULES: Final = frozenset({"query_service", "router", "processor.cli"})
"""What is born here."""
SHOWS_STACKS: Final = "PYTHONFAULTHANDLER"
"""The interpreter writes the stacks of all threads when a signal like SIGABRT ends it."""
_ROOT: Final = Path(__file__).parents[2]
_IMPORTED: Final = ("query_service.cli", "query_service.node", "router.cli", "processor.cli")
_MESSAGE_BYTES_MAX: Final = 1 << 20
_CODE_BYTES: Final = 4
_VARIABLES: Final = dict(os.environ)
_PATH: Final = ("", *sys.path)


def can_bear(module: str, variables: Mapping[str, str]) -> bool:
    """Whether a process of a module can be born here: Python reads some variables before it imports anything."""
    return module in MODULES and _of_python(variables) == _of_python(_VARIABLES)


def _of_python(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that matter. Starting Spark names all of Python's path, which is ours."""
    found = {name: value for name, value in variables.items() if name.startswith("PYTHON") and name != SHOWS_STACKS}
    path = [each for each in found.pop("PYTHONPATH", "").split(os.pathsep) if each not in _PATH]
    return found | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})


class Child:
    """A process that was born here, with what `subprocess.Popen` has.

    `codes`: its exit code comes through this pipe.
    """

    def __init__(self, pid: int, args: Sequence[str], codes: int) -> None:
        self.pid, self.args, self._codes = pid, args, codes
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit code, or less than 0 for a signal's number.

        Raises:
            subprocess.TimeoutExpired: it goes on.

        """
        if self.returncode is None:
            if not select.select([self._codes], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            code = os.read(self._codes, _CODE_BYTES)
            assert code, "the nursery has ended before its children"
            os.close(self._codes)
            self.returncode = int.from_bytes(code, signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """Where processes are born."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            variables = _VARIABLES | {"PYTHONPATH": os.pathsep.join(filter(None, _PATH))}
            self._process = subprocess.Popen(command, cwd=_ROOT, env=variables, pass_fds=[theirs.fileno()])

    def start(self, args: Sequence[str], log: int, folder: Path, variables: Mapping[str, str]) -> Child:
        """Have a module run; `args` are its name and what follows it on the command line."""
        codes, theirs = os.pipe()
        try:
            asked = json.dumps({"args": args, "folder": str(folder), "variables": dict(variables)}).encode()
            assert len(asked) < _MESSAGE_BYTES_MAX
            socket.send_fds(self._socket, [asked], [log, theirs])
        finally:
            os.close(theirs)
        pid = self._socket.recv(_CODE_BYTES)
        assert pid, f"the nursery has ended with {self._process.wait()}"
        return Child(int.from_bytes(pid), args, codes)

    def close(self) -> None:
        """End it; what was born goes on."""
        self._socket.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """Return the one of this process, which ends with it."""
    made = Nursery()
    atexit.register(made.close)
    return made


def _main(parent: socket.socket) -> list[str]:
    """Have children born until the parent is gone. A child returns what it has to run."""
    for each in _IMPORTED:
        importlib.import_module(each)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it too, and decides
    ended, wakes = os.pipe()
    for end in (ended, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    codes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([parent.fileno(), ended], [], [])
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(ended, _MESSAGE_BYTES_MAX)
            _bury(codes)
        if parent.fileno() not in ready:
            continue
        asked, received, _, _ = socket.recv_fds(parent, _MESSAGE_BYTES_MAX, 2)
        if not asked:
            sys.exit(0)
        log, told = received
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            for other in (*codes.values(), told, ended, wakes):
                os.close(other)
            parent.close()
            return _born(json.loads(asked), log)
        os.close(log)
        codes[pid] = told
        parent.send(pid.to_bytes(_CODE_BYTES))


def _bury(codes: dict[int, int]) -> None:
    """Tell of those that have ended."""
    while codes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = codes.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, os.waitstatus_to_exitcode(status).to_bytes(_CODE_BYTES, signed=True))
        os.close(told)


def _born(asked: dict[str, object], log: int) -> list[str]:
    """Become what was asked for."""
    args, folder, variables = asked["args"], asked["folder"], asked["variables"]
    assert isinstance(args, list)
    assert isinstance(folder, str)
    assert isinstance(variables, dict)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    if SHOWS_STACKS in variables:
        faulthandler.enable()
    return args


if __name__ == "__main__":
    sys.argv = _main(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
