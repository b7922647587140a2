"""What the lines of a processor's log say of its start."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from statehouse.local.start_stages import _STAGES, stage_of

PROCESSOR = Path(__file__).parents[4] / "processor"


@pytest.mark.feature("start-says-does")
@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ({"event": "starting Spark", "level": "info"}, "Spark is starting"),
        ({"event": "Spark has started", "seconds": 9.2}, "Spark has started after 9.2 s"),
        ({"event": "creating a source topic", "topic": "orders"}, "creates the source topic orders"),
        ({"event": "waiting for source topics", "topics": ["a", "b"]}, "waits for source topics: a, b"),
        ({"event": "processor started"}, "runs its first batch"),
        (
            {"event": "batch committed", "batch_id": 0, "query": "totals", "took_ms": 2345},
            "first batch of query totals committed after 2345 ms",
        ),
        (
            {"event": "batch committed", "batch_id": 7, "query": "totals", "took_ms": 45},
            "batch 7 of query totals committed after 45 ms",
        ),
        ({"event": "something else"}, None),
        ({"event": ["no text"]}, None),
        ({}, None),
        ([], None),
        ("text", None),
    ],
)
def test_a_line_says_a_stage_or_nothing(said: object, stage: str | None):
    assert stage_of(json.dumps(said)) == stage


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", "{", '{"event": '])
def test_lines_of_others_say_nothing(line: str):
    assert stage_of(line) is None


def test_the_processor_writes_these_lines():
    logged = {
        node.value
        for path in PROCESSOR.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(_STAGES) <= logged
