"""Where Spark's Java doesn't start, commands end with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_java import write_fake_java
from tests.support.statehouse import ROOT


@pytest.mark.feature("extras-start")
@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "no Java runtime found (JAVA_HOME is {home}, and {home}/bin/java is not a program). Install Java 17"),
        ("11.0.2", "{home}/bin/java is Java 11, and Java 17 or newer is needed."),
        ("21.0.1", "Spark's Java has ended at its start: what it printed above says why."),
    ],
)
def test_check_says_what_is_wrong_with_java(tmp_path: Path, version: str | None, said: str) -> None:
    home = tmp_path / "java"
    if version is not None:
        write_fake_java(home, version, "echo 'no room here' >&2; exit 1")
    ran = subprocess.run(
        [sys.executable, "-m", "statehouse.cli", "check", "page_views"],
        cwd=tmp_path,
        env=os.environ | {"JAVA_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    assert f"error: {said.format(home=home)}" in ran.stderr
    assert version != "21.0.1" or "no room here" in ran.stderr
