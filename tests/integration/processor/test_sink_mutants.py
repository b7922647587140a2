"""Mistakes that the sink's task could make are planted in a copy of this tree, and its tests find each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_ROOT: Final = Path(__file__).parents[3]
_SINK: Final = "processor/jvm/src/statehouse/sink"
_PROTOCOL: Final = "tests/integration/processor/test_sink_protocol.py"
_TASK: Final = "tests/integration/processor/test_sink_task.py"


class Mutant(NamedTuple):
    """A mistake: what stands in a class, what stands there instead, and the tests that are to fail."""

    name: str
    source: str
    right: str
    wrong: str
    tests: str
    selected: str


MUTANTS: Final = [
    Mutant(
        "a marker for each task",
        "Task.java",
        "Writers.KEPT.take(target, partition)",
        "Writers.KEPT.take(target, org.apache.spark.TaskContext.getPartitionId())",
        _TASK,
        "grouped_anew",
    ),
    Mutant(
        "a batch that only its first record names",
        "Task.java",
        "output.isStore() ?",
        "output.isStore() && ofOutputs[each.output] == null ?",
        _TASK,
        "names_its_batch",
    ),
    Mutant(
        "a kept producer that skips nothing",
        "PartitionWriter.java",
        "if (marker > batch) {",
        "if (marker > batch && producer == null) {",
        _PROTOCOL,
        "once_whoever",
    ),
    Mutant(
        "a claim that is taken for a batch",
        "PartitionWriter.java",
        'records == null ? CLAIM : ""',
        '""',
        _PROTOCOL,
        "claim",
    ),
    Mutant(
        "a cache where a later row comes before an earlier one",
        "RecordCache.java",
        "if (time(row) < time(before)) {",
        "if (time(row) <= time(before)) {",
        _TASK,
        "placed_and_cached",
    ),
    Mutant(
        "a letter for each window of a record",
        "DeadLetters.java",
        "if (source == null || seen.add(source)) {",
        "if (source == null || seen.add(source) || true) {",
        _TASK,
        "first_refusal",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant, tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith(("processor/", "statehouse/", "tests/", "pyproject.toml", "query_service/", "router/")):
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(_ROOT / name, target)
    source = tmp_path / _SINK / mutant.source
    text = source.read_text()
    assert text.count(mutant.right) == 1
    source.write_text(text.replace(mutant.right, mutant.wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", mutant.tests, "-k", mutant.selected]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "AssertionError" in done.stdout or "DID NOT RAISE" in done.stdout, done.stdout[-3000:]
