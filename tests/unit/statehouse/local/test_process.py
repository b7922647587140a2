"""Processes that are started, watched, found again and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statehouse.local.errors import LocalError
from statehouse.local.process import ManagedProcess, ProcessFailed, ProcessIdentity, descendants, signals_deferred
from tests.support.polling import poll_until

Run = Callable[..., ManagedProcess]

FOREVER = "import signal; print('here', flush=True); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True)\nwhile 1: signal.pause()"
)
WITH_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); " + FOREVER


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started: list[ManagedProcess] = []

    def start(program: str, **options: object) -> ManagedProcess:
        process = ManagedProcess(
            "part",
            [sys.executable, "-c", program],
            tmp_path / "part.log",
            **options,  # type: ignore[arg-type]
        )
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.kill()


def says(process: ManagedProcess, count: int = 1) -> Callable[[], bool]:
    return lambda: process.last_log_lines().count("here") >= count


def test_a_process_is_ready_when_its_check_says_so(run: Run):
    process = run(FOREVER)

    assert process.wait_ready(says(process), 30) >= 0
    assert process.is_running
    assert process.pid is not None


def test_it_is_in_a_session_of_its_own(run: Run):
    process = run(FOREVER)

    assert process.pid is not None
    assert os.getsid(process.pid) == process.pid


def test_one_that_ends_fails_with_its_last_lines(run: Run):
    process = run("import sys; print('the cause'); sys.exit(7)")

    with pytest.raises(ProcessFailed, match="ended with exit code 7") as caught:
        process.wait_ready(lambda: False, 30)

    assert str(caught.value).endswith(":\n    the cause")
    assert str(process.log_path) in str(caught.value)


def test_one_that_is_killed_fails_with_the_signal(run: Run):
    process = run("import os; os.kill(os.getpid(), 9)")

    with pytest.raises(ProcessFailed, match="ended by SIGKILL"):
        process.wait_ready(lambda: False, 30)


def test_one_that_takes_too_long_still_runs(run: Run):
    process = run(FOREVER)

    with pytest.raises(ProcessFailed, match=r"not ready within 0\.1 s"):
        process.wait_ready(lambda: False, 0.1)

    assert process.is_running


def test_the_log_lines_of_an_earlier_run_are_not_shown(run: Run):
    process = run("print('first')")
    poll_until(lambda: not process.is_running, 30, "its end")
    process.start()
    poll_until(lambda: not process.is_running, 30, "its end")

    assert process.last_log_lines() == ["first"]


def test_a_program_that_is_not_there(tmp_path: Path):
    process = ManagedProcess("part", [str(tmp_path / "nothing")], tmp_path / "part.log")

    with pytest.raises(ProcessFailed, match="can't be run"):
        process.start()


def test_a_second_start_is_refused(run: Run):
    process = run(FOREVER)

    with pytest.raises(LocalError, match="already running"):
        process.start()


def test_stop_asks_first(run: Run):
    process = run(FOREVER)
    process.wait_ready(says(process), 30)

    assert process.stop()
    assert process.exit_code == -signal.SIGTERM
    assert process.stop()


def test_stop_sends_the_signal_it_was_told(run: Run):
    process = run(
        "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(5)); " + FOREVER,
        stop_signal=signal.SIGINT,
    )
    process.wait_ready(says(process), 30)

    assert process.stop()
    assert process.exit_code == 5


def test_stop_kills_what_does_not_listen(run: Run):
    process = run(STUBBORN, stop_timeout_s=0.1)
    process.wait_ready(says(process), 30)

    assert not process.stop()
    assert process.exit_code == -signal.SIGKILL


def test_stop_ends_a_frozen_process(run: Run):
    handles = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    process = run(handles + FOREVER, stop_timeout_s=0.1)
    process.wait_ready(says(process), 30)
    process.signal(signal.SIGSTOP)

    assert not process.stop()
    assert not process.is_running


@pytest.mark.parametrize("end", [ManagedProcess.stop, ManagedProcess.kill])
def test_children_end_with_it(run: Run, end: Callable[[ManagedProcess], object]):
    process = run(WITH_CHILD)
    process.wait_ready(says(process, 2), 30)
    assert process.pid is not None
    (child,) = descendants(process.pid)

    end(process)

    poll_until(lambda: not child.is_alive, 30, "the child's end")


def test_another_program_finds_it_and_stops_it(run: Run, tmp_path: Path):
    process = run(FOREVER)
    process.wait_ready(says(process), 30)
    adopted = ManagedProcess("part", [], tmp_path / "part.log")
    adopted.adopt(process.identity)
    assert adopted.is_running
    assert adopted.pid == process.pid

    assert adopted.stop()

    assert not process.is_running
    assert adopted.exit_code is None


def test_an_interrupt_during_a_start_comes_after_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []

    def start() -> None:
        with signals_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("started")

    try:
        with pytest.raises(KeyboardInterrupt):
            start()

        assert done == ["started"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reused_pid_is_somebody_else():
    other = subprocess.Popen([sys.executable, "-c", FOREVER])
    try:
        before = ProcessIdentity(other.pid, "a time long ago")

        before.send(signal.SIGKILL)

        assert not before.is_alive
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessIdentity.of(child.pid)
    poll_until(lambda: ProcessIdentity.of(child.pid) is None, 30, "its end")

    assert identity is None or not identity.is_alive
    child.wait()
