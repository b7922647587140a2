"""What the project's own files promise of each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest
import yaml

_ROOT: Final = Path(__file__).parents[2]
_PYPROJECT: Final = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_PACKAGES: Final = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def would_run(target: str) -> str:
    """Return every command that a target would run in a folder where nothing is built yet."""
    done = subprocess.run(["make", "-nB", target], cwd=_ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_package_says_that_it_is_typed() -> None:
    assert _PACKAGES
    assert [each for each in _PACKAGES if not (_ROOT / each / "py.typed").is_file()] == []


def test_the_licence_is_in_the_package() -> None:
    assert _PYPROJECT["project"]["license"] == "Apache-2.0"
    (path,) = _PYPROJECT["project"]["license-files"]
    assert (_ROOT / path).read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]


@pytest.mark.parametrize("target", ["check", "fmt"])
def test_needs_neither_java_nor_the_right_to_install(target: str) -> None:
    commands = would_run(target)
    assert "ruff" in commands
    assert re.findall(r"(?<!\*\.)\b(?:mvn|java|apt-get|grpcurl|nft|sudo)\b", commands) == []


def test_the_tools_of_tests_are_built_for_tests() -> None:
    assert {"mvn", "apt-get", "grpcurl"} <= set(re.findall(r"\b(?:mvn|apt-get|grpcurl)\b", would_run("test")))


def test_hooks_run_what_people_run() -> None:
    config = yaml.safe_load((_ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    checked = would_run("check") + would_run("fmt")
    assert hooks
    for program in (hook["entry"].split()[0] for hook in hooks):
        assert program in checked, program
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
