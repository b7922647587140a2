"""A process that writes to a store is killed: what is on disk is the changelog up to the place that stands with it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from query_service.stores.walk import Walk
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW
from tests.support.changelogs import (
    RETENTION_MS,
    apply_rest,
    changelog,
    entries,
    opened,
    position_of,
    versions,
)

NO_LIMIT = 10**9
ROOT = Path(__file__).parents[3]


@pytest.mark.feature("offset-stands-write")
@pytest.mark.parametrize("kind", [KEY_VALUE, WINDOW, SESSION, VERSIONED])
@pytest.mark.parametrize(
    ("kills", "records", "largest_batch"),
    [(2, 6_000, 200), pytest.param(25, 300_000, 3_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])],
)
def test_killed_store_is_its_changelog_up_to_its_checkpoint(
    tmp_path: Path, kind: str, kills: int, records: int, largest_batch: int
) -> None:
    seed = random.randrange(2**32)
    with noted(f"the changelog's seed was {seed}"):
        kill_and_check(tmp_path, kind, seed, kills, records, largest_batch)


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Have failures say what is needed to repeat them."""
    try:
        yield
    except Exception as failure:
        failure.add_note(note)
        raise


def kill_and_check(directory: Path, kind: str, seed: int, kills: int, records: int, largest_batch: int) -> None:
    log = changelog(kind, seed, records)
    for nth in range(1, kills + 1):
        target = records * nth // (kills + 1)
        acknowledged = write_and_kill(directory, [kind, seed, records, largest_batch], target)
        store = opened(kind, directory)
        position = position_of(store)
        assert acknowledged <= position < records, "a batch that was written stays; the process had more to do"
        check(store, kind, log[:position])
        store.close()
    store = opened(kind, directory)
    for position in apply_rest(store, log, largest_batch):
        assert position <= records
    check(store, kind, log)
    store.close()


def write_and_kill(directory: Path, arguments: list[object], target: int) -> int:
    """Have a process apply the log, kill it once past a position; return the last position that it told."""
    command = [sys.executable, "-m", "tests.support.changelogs", str(directory), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n\n")
        told = 0
        while told < target:
            told = int(process.stdout.readline())
            process.stdin.write(b"\n")  # two are always due, so that it dies in a batch
        process.kill()
        return max([told, *map(int, process.stdout.read().split())])


def check(store: Any, kind: str, log: list[Any]) -> None:
    if kind == KEY_VALUE:
        assert dict(store.scan(KeyRange(), NO_LIMIT, NO_LIMIT, Walk()).entries) == entries(kind, log)
    elif kind == VERSIONED:
        check_versions(store, log)
    else:
        page = store.scan(KeyRange(), lambda _key: True, 0, 2**62, NO_LIMIT, NO_LIMIT, Walk())
        assert dict(page.entries) == entries(kind, log)


def check_versions(store: Any, log: list[Any]) -> None:
    """Compare every as-of answer of the history that can differ from the one before it."""
    now_ms = max(record.timestamp_ms for record in log)
    assert store.history_start_ms == max(0, now_ms - RETENTION_MS)
    for key, held in versions(log).items():
        times = {store.history_start_ms, now_ms, *(at for at in held if at >= store.history_start_ms)}
        for as_of_ms in times:
            at = max((each for each in held if each <= as_of_ms), default=None)
            value = None if at is None else held[at]
            found = store.get_as_of(key, as_of_ms)
            assert (found and (found.value, found.timestamp_ms)) == (None if value is None else (value, at))
