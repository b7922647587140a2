"""Gives runs of the simulation to the data plane, which has to answer what the nodes did: see `recording`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.simulation.run import Outcome, run_seed
from tests.support.go_program import DATAPLANE

_FIGURES: Final = re.compile(
    r"^(\d+) runs: (\d+) answers, (\d+) with a write before the read, (\d+) batches, (\d+) stores opened again$",
    re.MULTILINE,
)
_BUILT_WITHIN_S: Final = 600
_PLAYED_WITHIN_S: Final = 60.0
"""A run."""


@dataclass(frozen=True)
class Figures:
    """What was replayed: runs, answers, those whose store was written to between stamp and read, and so on."""

    runs: int
    answers: int
    with_writes: int
    batches: int
    opened_again: int

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.runs + other.runs,
            self.answers + other.answers,
            self.with_writes + other.with_writes,
            self.batches + other.batches,
            self.opened_again + other.opened_again,
        )


NOTHING: Final = Figures(0, 0, 0, 0, 0)


class Differs(AssertionError):
    """The data plane has answered otherwise than a node, or a run has broken a rule."""


def build(folder: Path, *, races: bool = False) -> Path:
    """Build what replays, and return it. `races`: it also looks for them."""
    program = folder / "replay"
    how = ["-race"] if races else []
    built = ["go", "test", "-c", *how, "-o", str(program), "./serve"]
    environment = os.environ | {"CGO_ENABLED": "1" if races else "0"}  # who looks for races needs C
    subprocess.run(built, cwd=DATAPLANE, check=True, timeout=_BUILT_WITHIN_S, env=environment)
    return program


def record(folder: Path, seed: int) -> Outcome:
    """Run a seed, and write its recording into a folder."""
    return run_seed(seed, recorded_to=folder / f"{seed}.jsonl")


def replay(program: Path, seeds: Sequence[int], folder: Path, jobs: int) -> Figures:
    """Record some seeds in an empty folder, and replay them there.

    Raises:
        Differs: see there.

    """
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(partial(record, folder), seeds):
            if outcome.violation:
                raise Differs(f"seed {outcome.seed}: {outcome.violation}")
    played = subprocess.run(
        [program, "-test.run", "^TestRecordedRuns$", f"-recordings={folder}"],
        cwd=DATAPLANE,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=_PLAYED_WITHIN_S * len(seeds),
        check=False,
    )
    figures = _FIGURES.search(played.stdout)
    if played.returncode != 0 or figures is None:
        raise Differs(played.stdout + played.stderr)
    return Figures(*map(int, figures.groups()))
