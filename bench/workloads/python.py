"""A Python application's concurrent lookups: with our client, and with grpcio at the peer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from bench.failure import BenchFailure
from bench.measure import Result, Stage
from bench.sides.servers import ROOT

_CONCURRENCY: Final = 64
_GRACE_S: Final = 60.0


def python_client(stage: Stage) -> Iterator[Result]:
    """Measure one process of the application."""
    options: dict[str, Any] = dict(stage.servers.anywhere())
    command = [sys.executable, "-m", "bench.python_client", options["kind"], *options["targets"]]
    command += ["--keys", str(stage.shape.keys), "--concurrency", str(_CONCURRENCY)]
    command += ["--seconds", str(stage.load.seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=2 * stage.load.seconds + _GRACE_S, check=False
    )
    if done.returncode != 0:
        raise BenchFailure(f"the Python client failed: {done.stderr.strip()[-2000:]}")
    yield Result(f"Get by a Python client, concurrency {_CONCURRENCY}", json.loads(done.stdout))
