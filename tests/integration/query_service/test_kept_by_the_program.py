"""The program keeps the batches that `statehouse.contract.batch_cuts` names: held together on made-up questions."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

from statehouse.contract.batch_cuts import HEADER, batch_in, covers, header_value, is_kept, is_state_of
from statehouse.contract.moment_leases import AGE_MAX_MS, LEASE_MS, KeptState, staying
from statehouse.contract.moments import NONE
from tests.support.go_program import run_go_test

QUESTIONS = 20_000
LEASES = 500


def test_the_program_keeps_what_the_functions_name(tmp_path: Path) -> None:
    rng = random.Random(11)
    headers = [_header(rng) for _ in range(QUESTIONS)]
    questions = {
        "Kept": [_kept(rng) for _ in range(QUESTIONS)],
        "Covers": [_covered(rng) for _ in range(QUESTIONS)],
        "States": [_state(rng) for _ in range(QUESTIONS)],
    }
    leases = [_leases(rng) for _ in range(LEASES)]
    assert {stays for each in leases for stays in each["Stay"]} == {True, False}
    assert {each["Batch"] == NONE for each in headers} == {True, False}
    for about, asked in questions.items():
        assert {each[-1] for each in asked} == {0, 1}, about
    (tmp_path / "cases").write_text(json.dumps({"Headers": headers, "Leases": leases, **questions}))
    run_go_test("moments", "TestAgainstReference", cases=tmp_path / "cases")


def _header(rng: random.Random) -> dict[str, str | int]:
    value = header_value(rng.getrandbits(rng.randrange(64)))
    if rng.random() < 0.5:
        value = rng.choice([value[:-1], value + value, bytes(rng.randrange(256) for _ in range(rng.randrange(12)))])
    return {"Value": base64.b64encode(value).decode(), "Batch": batch_in([(HEADER, value)])}


def _kept(rng: random.Random) -> list[int]:
    newest = rng.randrange(2_000)
    batch = newest + rng.randrange(-400, 40)
    return [batch, newest, int(is_kept(batch, newest))]


def _covered(rng: random.Random) -> list[int]:
    newest = rng.randrange(2_000)
    last = newest + rng.randrange(-400, 5)
    first = last + rng.randrange(-40, 3)
    return [first, last, newest, int(covers(first, last, newest))]


def _state(rng: random.Random) -> list[int]:
    asked = (rng.randrange(-1, 4), rng.randrange(4), rng.randrange(8), rng.randrange(4), rng.randrange(8))
    return [*asked, int(is_state_of(*asked))]


def _leases(rng: random.Random) -> dict[str, Any]:
    """Moments in the order of time, most of which were read for a while."""
    count, step_ms = rng.randrange(90), rng.choice((1, 500, 10_000))
    kept = []
    for place in range(count):
        age_ms = (count - place) * step_ms + rng.choice((0, 0, AGE_MAX_MS - 1))
        idle_ms = rng.choice((-1, rng.randrange(-2, age_ms + 2), rng.randrange(LEASE_MS), LEASE_MS - rng.randrange(2)))
        kept.append(KeptState(rng.random() < 0.6, age_ms, idle_ms, (count - place) * 100))
    most = rng.choice((10**9, count * 50))
    return {
        "Kept": [
            {"IsWanted": each.is_wanted, "AgeMS": each.age_ms, "IdleMS": each.idle_ms, "Written": each.written}
            for each in kept
        ],
        "Most": most,
        "Stay": staying(kept, most),
    }
