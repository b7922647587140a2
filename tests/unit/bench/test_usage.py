"""What processes take, their children included."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.usage import Memory, cpu_seconds

_TAKES = """
import sys, time
held = b"x" * 2**26
while time.process_time() < 0.3:
    pass
print("taken", flush=True)
sys.stdin.read()
"""
_STARTS_IT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_TAKES!r}])"


@pytest.fixture(params=[_TAKES, _STARTS_IT], ids=["itself", "child"])
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that has taken 0.3 s and 64 MiB, on its own or by a child."""
    command = [sys.executable, "-c", request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as found:
        assert found.stdout is not None
        found.stdout.readline()
        yield found


def test_time_and_memory_are_counted(process: subprocess.Popen[bytes]) -> None:
    assert cpu_seconds([process.pid]) >= 0.25
    used = Memory.of([process.pid])
    assert used.rss >= used.pss >= 64 * 2**20


def test_what_has_ended_takes_nothing(process: subprocess.Popen[bytes]) -> None:
    process.communicate()

    assert cpu_seconds([process.pid]) == 0
    assert Memory.of([process.pid]) == Memory(0, 0)


def test_of_children_that_have_ended_the_time_is_still_counted() -> None:
    before = cpu_seconds([os.getpid()])
    subprocess.run([sys.executable, "-c", _TAKES], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

    assert cpu_seconds([os.getpid()]) - before >= 0.25
