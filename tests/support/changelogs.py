"""Generated changelogs of each kind of store, and a process that applies one to a store until it is killed.

`python -m tests.support.changelogs DIRECTORY KIND SEED RECORDS LARGEST_BATCH` applies one batch for each line that it
reads, and prints the position after the batch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.catalog import open_store
from query_service.stores.resources import StoreResources
from statehouse.contract.topology import SESSION, WINDOW, StoreSpec
from statehouse.keys.composite import SessionKey, WindowKey

RETENTION_MS = 200_000
_KEYS = [b"key-%d" % nth for nth in range(20)]
# The whole log is this many retentions long, so that segments are dropped all the time.
_RETENTIONS = 30


def changelog(kind: str, seed: int, records: int) -> list[ChangelogRecord]:
    """Return the log: few keys, some tombstones, some records late."""
    choice = random.Random(seed)
    return [_record(kind, choice, nth * _RETENTIONS * RETENTION_MS // records) for nth in range(records)]


def _record(kind: str, choice: random.Random, now_ms: int) -> ChangelogRecord:
    at_ms = max(0, now_ms - choice.choice((0, 0, 0, 30_000, 2 * RETENTION_MS)))
    key, value = choice.choice(_KEYS), None if choice.random() < 0.2 else choice.randbytes(choice.choice((3, 300)))
    if kind == WINDOW:
        key = WindowKey(key, at_ms // 10_000 * 10_000).to_bytes()
    elif kind == SESSION:
        key = SessionKey(key, at_ms // 10_000 * 10_000, at_ms // 10_000 * 10_000 + 5_000).to_bytes()
    return ChangelogRecord(key, value, at_ms)


def opened(kind: str, directory: Path) -> Any:
    """Open the store, with a write buffer so small that flushes and compactions are under way all the time."""
    spec = StoreSpec("s", "changelog", 1, 0, kind=kind, retention_ms=RETENTION_MS)
    return open_store(spec, directory, StoreResources(write_buffer_bytes=256 * 1024))


def position_of(store: Any) -> int:
    """Return up to where a store has applied its log."""
    checkpoint = store.checkpoint()
    return 0 if checkpoint is None else checkpoint.position


def apply_rest(store: Any, log: list[ChangelogRecord], largest_batch: int) -> Iterator[int]:
    """Apply what a store lacks, in batches of any size; yield the position after each."""
    position = position_of(store)
    while position < len(log):
        batch = log[position : position + random.randint(1, largest_batch)]
        position += len(batch)
        store.apply(batch, Checkpoint("changelog", "id", position, 1))
        yield position


def versions(log: list[ChangelogRecord]) -> dict[bytes, dict[int, bytes | None]]:
    """Return the versions that a versioned store takes from a log, by key and time."""
    held: dict[bytes, dict[int, bytes | None]] = {}
    stream_time_ms = -1
    for key, value, at_ms in (record[:3] for record in log):
        stream_time_ms = max(stream_time_ms, at_ms)
        if at_ms >= stream_time_ms - RETENTION_MS:
            held.setdefault(key, {})[at_ms] = value
    return held


def entries(kind: str, log: list[ChangelogRecord]) -> dict[Any, bytes]:
    """Return what any other store holds after a log."""
    held: dict[Any, bytes] = {}
    times: dict[Any, int] = {}
    stream_time_ms = -1
    for record in log:
        key: Any = record.key
        if kind in {WINDOW, SESSION}:
            key = (WindowKey if kind == WINDOW else SessionKey).from_bytes(record.key)
            times[key] = key.start_ms if isinstance(key, WindowKey) else key.end_ms
            stream_time_ms = max(stream_time_ms, times[key])
            if times[key] <= stream_time_ms - RETENTION_MS:
                continue
        held.pop(key, None)
        if record.value is not None:
            held[key] = record.value
    return {key: value for key, value in held.items() if times.get(key, 0) > stream_time_ms - RETENTION_MS}


def main() -> None:
    """Apply a log from where the store is; the caller ends this."""
    directory, kind, seed, records, largest_batch = sys.argv[1:]
    store = opened(kind, Path(directory))
    positions = apply_rest(store, changelog(kind, int(seed), int(records)), int(largest_batch))
    while sys.stdin.readline():
        sys.stdout.write(f"{next(positions)}\n")
        sys.stdout.flush()
    store.close()


if __name__ == "__main__":
    main()
