"""The program sums as `statehouse.contract.store_sums` does: held together on made-up entries."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

from statehouse.contract.store_sums import StoreSums, digest_of
from tests.support.go_program import run_go_test

CASES = 50


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


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
