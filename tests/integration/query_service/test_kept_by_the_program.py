"""The program keeps the batches that `statehouse.contract.moments` names: held together on made-up questions."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path

from statehouse.contract.moments import (
    HEADER,
    NONE,
    batch_in,
    covers,
    header_value,
    is_kept,
    is_state_of,
)

DATAPLANE = Path(__file__).parents[3] / "dataplane"
QUESTIONS = 20_000


def test_the_program_keeps_what_the_functions_name(tmp_path: Path) -> None:
    rng = random.Random(11)
    headers = [_header(rng) for _ in range(QUESTIONS)]
    questions = {
        "Kept": [_kept(rng) for _ in range(QUESTIONS)],
        "Covers": [_covered(rng) for _ in range(QUESTIONS)],
        "States": [_state(rng) for _ in range(QUESTIONS)],
    }
    assert {each["Batch"] == NONE for each in headers} == {True, False}
    for about, asked in questions.items():
        assert {each[-1] for each in asked} == {0, 1}, about
    (tmp_path / "cases").write_text(json.dumps({"Headers": headers, **questions}))
    ran = subprocess.run(
        ["go", "test", "-count=1", "-run", "^TestAgainstReference$", "./moments", f"-cases={tmp_path / 'cases'}"],
        cwd=DATAPLANE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


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
