"""A test that needs a program fails without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.tools import built, tool

_TESTS: Final = Path(__file__).parents[1]
_SKIPS: Final = re.compile(r"\b(?:pytest\.skip|importorskip|mark\.skip|mark\.xfail|skipif|skipTest)\b")


def test_a_missing_program_fails_the_test_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="run `make tools`"):
        tool("no-such-program-anywhere")
    with pytest.raises(pytest.fail.Exception, match="run `make tools`"):
        built(tmp_path / "nothing")


def test_a_program_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "installed"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool("installed") == built(program) == str(program)


def test_no_test_is_skipped() -> None:
    others = [path for path in _TESTS.rglob("*.py") if path != Path(__file__)]
    assert len(others) > 100
    assert [str(path) for path in others if _SKIPS.search(path.read_text())] == []
