"""Runs `statehouse` as people do: a program of its own, in a folder of theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.tools import path_with_tools

ROOT: Final = Path(__file__).parents[2]
ANY_PORTS: Final = tuple(
    word for flag in ("--kafka-port", "--router-port", "--http-port", "--first-node-port") for word in (flag, "0")
)
_MODULE: Final = (sys.executable, "-m", "statehouse.cli")
_ENDS_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str


def statehouse(folder: Path, *arguments: str, timeout_s: float = 60.0) -> Ran:
    """Run a command to its end in a folder. Modules of the project can be imported, as from an installed package."""
    done = subprocess.run(
        [*_MODULE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=folder,
        env=_environment(),
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@contextmanager
def staying(folder: Path, said: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that stays; all that it prints goes to a file. It is interrupted at the end, if it runs then."""
    with said.open("wb") as file:
        process = subprocess.Popen(
            [*_MODULE, *arguments], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=_environment()
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("STATEHOUSE_TLS", "STATEHOUSE_R"))
    }
    return kept | {"PATH": path_with_tools(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
