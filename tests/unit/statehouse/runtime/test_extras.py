"""Errors where an extra is not installed: each names the extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from statehouse.runtime import extras
from statehouse.runtime.extras import EXTRAS, NotInstalled, ensure_installed, without_package

_ROOT = Path(__file__).parents[4]
# The import names that differ from those of their distributions; py4j comes with pyspark.
_DISTRIBUTIONS = {"sse_starlette": "sse-starlette", "multipart": "python-multipart", "py4j": "pyspark"}

# The command, where packages are not there.
_WITHOUT = """
import sys
sys.modules |= dict.fromkeys({missing!r})
from statehouse.cli.__main__ import main
main()
"""


def test_each_package_is_declared_by_its_extra() -> None:
    declared = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        for package in packages:
            name = _DISTRIBUTIONS.get(package, package)
            assert any(each.partition(">")[0] == name for each in declared[extra]), package


@pytest.mark.feature("extras-start")
def test_all_that_is_missing_is_named_with_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_installed("this", *EXTRAS)
    monkeypatch.setattr(extras, "EXTRAS", {"a": ("json",), "b": ("no_such_package", "nor_this")})
    ensure_installed("this", "a")
    with pytest.raises(
        NotInstalled,
        match=r"this needs no_such_package, nor_this, which are not installed: pip install 'statehouse\[a,b\]'",
    ):
        ensure_installed("this", "a", "b")


@pytest.mark.parametrize(("name", "extra"), [("pyspark.sql", "processor"), ("jinja2", "http")])
def test_a_failed_import_is_told_with_the_extra(name: str, extra: str) -> None:
    told = without_package("this", ModuleNotFoundError(name=name))
    assert str(told).endswith(f"which is not installed: pip install 'statehouse[{extra}]'")


def test_a_failed_import_of_anything_else_is_not_ours_to_tell() -> None:
    assert without_package("this", ModuleNotFoundError(name="pysparkle")) is None
    assert without_package("this", ModuleNotFoundError()) is None


@pytest.mark.feature("extras-start")
@pytest.mark.parametrize(
    ("command", "missing", "said"),
    [
        ("up", ["starlette"], "`statehouse up` needs starlette, which is not installed: "),
        ("check leaderboard", ["pyspark", "py4j"], "this needs pyspark, which is not installed: "),
    ],
)
def test_a_command_without_its_extra_ends_with_what_to_install(
    tmp_path: Path, command: str, missing: list[str], said: str
) -> None:
    program = [sys.executable, "-c", _WITHOUT.format(missing=missing), *command.split()]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"error: {said}pip install 'statehouse[")
    assert "Traceback" not in done.stderr
