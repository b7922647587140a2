"""The program sums as `statehouse.contract.store_sums` does, and stores do: held together on made-up entries."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.summed import SummedPart, WantedSums
from query_service.stores.windows import SESSIONS, WINDOWS, KeyLayout, TimedStore
from statehouse.contract.store_sums import StoreSums, SumBounds, digest_of
from statehouse.keys.composite import SessionKey, WindowKey
from tests.support.go_program import run_go_test

CASES = 50
TIMED_CASES = 40
RETENTION_MS = 200_000


def test_the_program_sums_what_the_functions_sum(tmp_path: Path) -> None:
    rng = random.Random(44)
    cases = [_case(rng) for _ in range(CASES)]
    assert {bool(each["Entries"]) for each in cases} == {True, False}
    (tmp_path / "cases").write_text(json.dumps(cases))
    run_go_test("sums", "TestAgainstReference", cases=tmp_path / "cases")


def _case(rng: random.Random) -> dict[str, Any]:
    buckets = rng.choice([1, 7, 1_024])
    entries = [
        (rng.randbytes(rng.randrange(12)), rng.randbytes(rng.randrange(8, 300))) for _ in range(rng.choice([0, 1, 300]))
    ]
    sums = StoreSums.empty(buckets)
    for key, stored in entries:
        sums.add(key, digest_of(key, stored))
    return {
        "Entries": [[_text(key), _text(stored)] for key, stored in entries],
        "Buckets": buckets,
        "Counts": sums.counts,
        "Sums": _text(sums.packed()),
    }


def test_the_program_sums_the_windows_and_sessions_that_the_reference_sums(tmp_path: Path) -> None:
    rng = random.Random(4)
    cases = [_timed_case(rng, tmp_path / str(number)) for number in range(TIMED_CASES)]
    assert {bool(each["PassedOver"]) for each in cases} == {bool(each["Entries"]) for each in cases} == {True, False}
    (tmp_path / "cases").write_text(json.dumps(cases))
    run_go_test("stores", "TestTimedSumsAgainstReference", timed=tmp_path / "cases")


def _timed_case(rng: random.Random, folder: Path) -> dict[str, Any]:
    """Return records, and what a store that has taken them sums to."""
    layout: KeyLayout[Any] = rng.choice([WINDOWS, SESSIONS])
    steps = rng.choice([1, 9])
    engine = RocksDBEngine(folder) if rng.randrange(8) == 0 else MemoryEngine(10**9)
    store: TimedStore[Any] = TimedStore(engine, layout, RETENTION_MS)
    records = [_timed_record(rng, layout is SESSIONS, steps, offset) for offset in range(rng.choice([0, 10, 100]))]
    for record in records:
        store.apply([record], Checkpoint("t", "id", record.offset + 1, 1))
    own = store.bounded(SumBounds(recorded_from_ms=rng.choice([-1, 1_030])))
    bounds = own | SumBounds(own.stream_time_ms + rng.choice([0, 50_000]))
    wanted = WantedSums(rng.choice([1, 7]), (0, 3), bounds)
    with store.summing(wanted) as summing:
        parts: list[SummedPart] = [summing.go_on(200)]
        while parts[-1].sums is None:
            parts.append(summing.go_on(200))
    store.close()
    sums = parts[-1].sums
    return {
        "IsSession": layout is SESSIONS,
        "RetentionMS": RETENTION_MS,
        "Records": [
            {
                "Key": _text(each.key),
                "Value": None if each.value is None else _text(each.value),
                "TimestampMS": each.timestamp_ms,
            }
            for each in records
        ],
        "Buckets": wanted.buckets,
        "Listed": list(wanted.listed),
        "FirstMS": store.first_counted_ms(wanted),
        "RecordedFromMS": bounds.recorded_from_ms,
        "Counts": sums.counts,
        "Sums": _text(sums.packed()),
        "Keys": [_text(key) for each in parts for key, _ in each.listed],
        "Parts": len(parts),
        "Entries": sums.entries,
        "PassedOver": sum(each.passed_over for each in parts),
    }


def _timed_record(rng: random.Random, is_session: bool, steps: int, offset: int) -> ChangelogRecord:
    key, start_ms = rng.choice([b"", b"\0", b"a", b"\xff"]), rng.randrange(steps) * 100_000 + rng.choice([0, 1])
    composite = (
        SessionKey(key, start_ms, start_ms + rng.randrange(2) * 30_000) if is_session else WindowKey(key, start_ms)
    )
    value = None if rng.randrange(5) == 0 else rng.randbytes(rng.randrange(40))
    return ChangelogRecord(composite.to_bytes(), value, 1_000 + offset, offset)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
