"""Errors in the log: each kind has few lines, and other kinds and levels are not touched."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

FLOOD: Final = """
import logging, structlog
from statehouse.observability import logs
logs.configure()
ours, library = structlog.get_logger("ours"), logging.getLogger("asyncio")
for number in range(300):
    try:
        raise ValueError("x" * 1_000)
    except ValueError:
        ours.exception("defect in a handler", number=number)
        library.exception("task %s failed", number)
    ours.error("changed files can't be used", number=number)
    ours.warning("a warning", number=number)
ours.error("another kind")
"""


def test_errors_of_one_kind_are_few_and_nothing_else_is_left_out():
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(each) for each in done.stderr.splitlines()]

    def count(event: str) -> int:
        return sum(each["event"].startswith(event) for each in lines)

    assert 1 <= count("defect in a handler") <= 20
    assert 1 <= count("task ") <= 20
    assert 100 <= count("changed files") <= 120
    assert count("a warning") == 300
    assert count("another kind") == 1
