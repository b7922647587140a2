"""A server's start imports what a server needs, and its log shows no variables of a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = ["query_service.__main__", "router.__main__", "processor.__main__"]
SHOWN = "import sys, structlog; print('rich' in sys.modules, structlog.dev.default_exception_formatter.__name__)"


def printed(code: str) -> list[str]:
    """Return the words that a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("program", PROGRAMS)
def test_servers_import_no_rich(program: str) -> None:
    assert printed(f"import {program}; {SHOWN}") == ["False", "plain_traceback"]


def test_a_command_that_draws_imports_rich_itself() -> None:
    shown = "from statehouse.cli.output import print_table; print_table(['A'], [['[b]x']])"
    assert printed(f"import query_service.__main__; {shown}") == ["A", "[b]x"]
