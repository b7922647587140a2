"""Following a changelog with as many kept moments as there are, and with none, in turn: Go's `BenchmarkFollow`.

It has no Kafka in it, so a node, which also fetches and unpacks, pays a smaller part for moments. The store is small
beside what its moments hold: 200,000 entries, and up to 288,000 older values. Entries are counted, as in each store
that is followed: a record costs a read of its key, and older values have more blocks to be read.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.moments.compared import Turn
from bench.sides.servers import ROOT

_PER_RECORD: Final = re.compile(r"\s(\d+(?:\.\d+)?) cpu-ns/record")
_US_PER_NS: Final = 1e-3
_BUILD_S: Final = 600.0
_TURN_S: Final = 120.0


def followed(directory: Path, turns: int, batches: int) -> list[Turn]:
    """Follow so many batches in each turn; return what a record cost, in microseconds of all processors.

    Raises:
        BenchFailure: Go's benchmark can't be built, or doesn't end well.

    """
    program = directory / "orders.test"
    environment = {**os.environ, "CGO_ENABLED": "0", "TMPDIR": str(directory)}
    build = ["go", "-C", str(ROOT / "dataplane"), "test", "-buildvcs=false", "-c", "-o", str(program), "./orders"]
    if subprocess.run(build, check=False, timeout=_BUILD_S, env=environment).returncode != 0:
        raise BenchFailure("the benchmark of Go can't be built")
    return [_turn(program, environment, batches, has=turn % 2 == 1) for turn in range(turns)]


def _turn(program: Path, environment: dict[str, str], batches: int, *, has: bool) -> Turn:
    which = f"^BenchmarkFollow$/^moments={str(has).lower()}$"
    command = [str(program), "-test.run=^$", f"-test.bench={which}", f"-test.benchtime={batches}x"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_TURN_S, env=environment, cwd=program.parent
    )
    found = _PER_RECORD.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise BenchFailure(f"{which} did not end well: {done.stdout[-500:]}{done.stderr[-500:]}")
    return Turn(has, float(found[1]) * _US_PER_NS)
