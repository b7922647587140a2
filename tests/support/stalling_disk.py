"""A disk that stalls when a test says so: a folder behind a process (FUSE, `tools/stalling_disk`) that can be stopped.

It stands for a device that answers nothing. What the kernel's page cache holds can still be read, and a process that
waits for the disk can be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.polling import poll_until
from tests.support.tools import tool


class StallingDisk:
    """The disk is the folder `path`. Every process that uses it while it stalls waits, this one too."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self.path, self._process = path, process

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let it stall."""
        os.kill(self._process.pid, signal.SIGSTOP)
        # On a busy machine its threads go on answering for a while, and what they answer is in memory from then on.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def stalling_disk(path: Path) -> Iterator[StallingDisk]:
    """Mount a disk at `path`, which is made; without the right to, the test fails and says so."""
    beneath = path.with_name(f"{path.name}-beneath")
    for folder in (path, beneath):
        folder.mkdir(parents=True)
    with subprocess.Popen([tool("stalling_disk"), str(path), str(beneath)], stderr=subprocess.PIPE) as process:
        poll_until(lambda: path.is_mount() or process.poll() is not None, 20, "the disk to be mounted")
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(f"this test needs /dev/fuse and the right to mount: {process.stderr.read().decode()}")
        try:
            yield StallingDisk(path, process)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            process.kill()
