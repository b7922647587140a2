"""The load generator (its source is in `loadgen/`, built by `make tools`)."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.failure import BenchFailure

_PROGRAM: Final = Path(__file__).parents[1] / ".tools" / "bin" / "loadgen"
_WRONG_ANSWERS: Final = 3
_GRACE_S: Final = 30.0
# To each target. The kernel spreads connections over the processes that share a router's port, and gRPC-Java serves
# each connection on one thread: a few connections might all go to the same process or thread.
_CONNECTIONS: Final = 8

Report = dict[str, Any]
"""The load generator's report; loadgen/README.md explains the fields."""


def load(options: Mapping[str, object]) -> Report:
    """Run the load generator; return its report. Each request must have succeeded.

    Raises:
        BenchFailure: it could not run, a value was wrong or missing, or a request failed.

    """
    with running(options) as under_load:
        report = under_load.report()
    if not report["passed"]:
        raise BenchFailure(f"requests failed: {report['requests']['by_outcome']}, {report['errors'][:3]}")
    return report


class UnderLoad:
    """A run under way."""

    def __init__(self, process: subprocess.Popen[str], duration_s: float) -> None:
        self._process, self._duration_s = process, duration_s

    def end(self) -> Report:
        """End the run now; return and raise as `report` does."""
        self._process.send_signal(signal.SIGTERM)
        return self.report()

    def report(self) -> Report:
        """Wait for the end; requests may have failed, but none may have had a wrong answer.

        Raises:
            BenchFailure: it could not run, or a value was wrong or missing.

        """
        out, errors = self._process.communicate(timeout=self._duration_s + _GRACE_S)
        if self._process.returncode not in {0, _WRONG_ANSWERS}:
            raise BenchFailure(f"loadgen ended with {self._process.returncode}: {errors.strip()[-2000:]}")
        report: Report = json.loads(out)
        if self._process.returncode == _WRONG_ANSWERS:
            raise BenchFailure(f"answers were wrong: {report['requests']['by_outcome']}, {report['errors'][:3]}")
        return report


@contextmanager
def running(options: Mapping[str, object]) -> Iterator[UnderLoad]:
    """Run the load generator during the context; a run without a report is ended when the context ends."""
    if not _PROGRAM.exists():
        raise BenchFailure(f"{_PROGRAM} is not there: run `make tools`")
    config = {"warmup_s": 0, "connections": _CONNECTIONS, **options}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        command = [str(_PROGRAM), "--config", file.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield UnderLoad(process, float(str(config.get("duration_s", 10))))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=_GRACE_S)
