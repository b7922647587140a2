"""Processes that outlive the program that started them: started, watched, found again, and ended reliably.

A process is known by its pid and its start time, since pids are reused: a program that ends "the process with pid 4711"
an hour later must be sure that it is still the one that was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from statehouse.local.errors import LocalError
from statehouse.local.log_lines import last_lines

Ready = Callable[[], bool]

_POLL_S: Final = 0.05
_KILL_WAIT_S: Final = 10.0
_FREEZE_WAIT_S: Final = 0.5
_LOG_LINES_SHOWN: Final = 15
_LOG_LINE_CHARACTERS_MAX: Final = 500
_PROC: Final = Path("/proc")


class ProcessFailed(LocalError):
    """A process ended on its own, or did not become ready in time; the message has its last log lines.

    `process` is its name.
    """

    def __init__(self, name: str, what: str, log_path: Path, log_lines: Sequence[str]) -> None:
        self.process = name
        said = "\n".join(f"    {line}" for line in log_lines) if log_lines else "    (nothing)"
        super().__init__(f"{name} {what}. Its last log lines are below, all of them in {log_path}:\n{said}")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, distinguishable from any other that gets its pid later."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that has this pid now; None if there is none, or a dead one."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return _start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal, to this very process only."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ManagedProcess:
    """A process in a session of its own, with a log file.

    A Ctrl-C at the terminal does not reach the process in its own session: so its starter decides in which order
    things end. The process goes on when its starter ends; write `identity` down to find it again (`adopt`). `env` is
    its whole environment, by default this program's own.

    Not thread-safe, not for use after fork.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = list(command)
        self._env = None if env is None else dict(env)
        self._cwd = cwd
        self._stop_signal = stop_signal
        self._stop_timeout_s = stop_timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None
        self._log_begin = 0

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process last started or adopted; None if there was none."""
        return self._identity

    @property
    def pid(self) -> int | None:
        """Its process id, None unless it runs."""
        return self._identity.pid if self._identity is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the process exists; says nothing about whether it works."""
        if self._child is not None:
            return self._child.poll() is None
        return self._identity is not None and self._identity.is_alive

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs, and for an adopted process, whose code is lost."""
        return None if self._child is None else self._child.poll()

    def adopt(self, identity: ProcessIdentity | None) -> None:
        """Take charge of a process that another program started."""
        if self._child is not None:
            self._child.poll()  # else what is left of one that has ended stays for as long as we do
        self._child, self._identity = None, identity

    def start(self) -> None:
        """Start the process; returns immediately.

        Raises:
            LocalError: it runs already.
            ProcessFailed: the program can't be run at all.

        """
        if self.is_running:
            raise LocalError(f"{self.name} is already running (pid {self.pid}); stop it first.")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # An interrupt between the fork and the assignment would leave a process that nobody knows of.
        with signals_deferred(), self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            try:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProcessFailed(self.name, f"can't be run: {error}", self.log_path, ()) from error
        # A child that is dead already has no start time any more; check() will say so.
        self._identity = ProcessIdentity.of(self._child.pid)

    def check(self) -> None:
        """Return if the process runs.

        Raises:
            ProcessFailed: it has ended.

        """
        if not self.is_running:
            code = self.exit_code
            how = "" if code is None else f" with exit code {code}" if code >= 0 else f" by {_signal_name(-code)}"
            raise ProcessFailed(self.name, f"ended{how}", self.log_path, self.last_log_lines())

    def wait_ready(self, ready: Ready, timeout_s: float) -> float:
        """Wait until `ready` is true; return the seconds that took.

        Raises:
            ProcessFailed: the process ended, or the time is over. In the latter case it still runs.

        """
        begin = time.monotonic()
        while not self.is_ready(ready, time.monotonic() - begin, timeout_s):
            time.sleep(_POLL_S)
        return time.monotonic() - begin

    def is_ready(self, ready: Ready, waited_s: float, timeout_s: float) -> bool:
        """Whether `ready` is true, of a process that was started `waited_s` seconds ago.

        Raises:
            ProcessFailed: it isn't, and the process ended, or the time is over.

        """
        if ready():
            return True
        self.check()
        if waited_s >= timeout_s:
            said = f"was not ready within {timeout_s:g} s"
            raise ProcessFailed(self.name, said, self.log_path, self.last_log_lines())
        return False

    def stop(self) -> bool:
        """Ask the process to end, and end it by SIGKILL after `stop_timeout_s`; return whether it ended on its own.

        The processes that it started are ended, too. Does nothing if it does not run.
        """
        identity = self._identity
        if identity is None or not self.is_running:
            self._reap()
            return True
        children = descendants(identity.pid)
        identity.send(self._stop_signal)
        went = self._wait_gone(self._stop_timeout_s)
        if not went:
            children = list({*children, *descendants(identity.pid)})
            identity.send(signal.SIGKILL)
            self._wait_gone(_KILL_WAIT_S)
        # Java and Spark's workers are children of what we started, and end with it unless it was killed.
        end_all(children, grace_s=2.0 if went else 0.0)
        self._reap()
        return went

    def kill(self) -> None:
        """End the process and all that it started by SIGKILL, as a crash of the machine would."""
        identity = self._identity
        if identity is None:
            return
        identity.send(signal.SIGSTOP)  # so that it starts nothing more while we look for what it has started
        deadline = time.monotonic() + _FREEZE_WAIT_S
        while _state(identity.pid) not in {None, "T"} and time.monotonic() < deadline:
            time.sleep(_POLL_S / 10)
        children = descendants(identity.pid)
        identity.send(signal.SIGKILL)
        end_all(children, grace_s=0.0)
        self._wait_gone(_KILL_WAIT_S)
        self._reap()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal (SIGSTOP and SIGCONT, to freeze and thaw it)."""
        if self._identity is not None:
            self._identity.send(number)

    def last_log_lines(self) -> list[str]:
        """Return the end of what the process wrote since it was last started, for people."""
        lines = last_lines(self.log_path, self._log_begin)
        return [line[:_LOG_LINE_CHARACTERS_MAX] for line in lines if line.strip()][-_LOG_LINES_SHOWN:]

    def _wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _reap(self) -> None:
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILL_WAIT_S)


def descendants(pid: int) -> list[ProcessIdentity]:
    """Return the processes that a process started, directly or not, as far as their parents still live."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[ProcessIdentity] = []
    waiting = list(children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        waiting.extend(children.get(child, ()))
        identity = ProcessIdentity.of(child)
        if identity is not None:
            found.append(identity)
    return found


def end_all(processes: Sequence[ProcessIdentity], grace_s: float) -> None:
    """Wait `grace_s` seconds for processes to end on their own; end the others by SIGKILL."""
    deadline = time.monotonic() + grace_s
    while any(process.is_alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes:
        process.send(signal.SIGKILL)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back in this context. Has no effect outside the main thread: handlers run only there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    # Handlers, not a blocked mask: processes started meanwhile would inherit a mask.
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in pending:
            signal.raise_signal(late)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _start_time(pid: int) -> str | None:
    """Return when the process with this pid was started, None if there is none or it is only waiting to be reaped."""
    if not _PROC.is_dir():
        return _start_time_by_ps(pid)
    fields = stat(pid)
    return None if fields is None or fields[0] in {"Z", "X"} else fields[19]


def _state(pid: int) -> str | None:
    """Return a process's state letter (T is stopped); None if there is no process, or no /proc."""
    fields = stat(pid)
    return None if fields is None else fields[0]


def stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat (proc(5)) from the state on; None if there is no process."""
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # Before the state stands the program's name in parentheses, and it may hold blanks and parentheses itself.
    return line.rpartition(")")[2].split()


def _start_time_by_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if state and not state.startswith("Z") else None


def _parents() -> list[tuple[int, int]]:
    """Return (pid, parent's pid) of every process."""
    if not _PROC.is_dir():
        done = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
        return [(int(pid), int(parent)) for pid, parent in map(str.split, done.stdout.splitlines())]
    found = ((int(entry.name), stat(int(entry.name))) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [(pid, int(fields[1])) for pid, fields in found if fields is not None]
