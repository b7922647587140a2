"""The units are what systemd takes, and say nothing that our programs would not understand."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from statehouse.settings import CONFIG_ENV, PROCESSES, load
from tests.deploy.files import DEPLOY
from tests.deploy.programs import parse

UNITS: Final = {path.stem.removeprefix("statehouse-"): path for path in (DEPLOY / "systemd").glob("*.service")}
_PROGRAM: Final = "/opt/statehouse/bin/statehouse"
# Of 100, by systemd's own count. Ours must reach Kafka and callers; what else may be taken from them is.
_EXPOSURE_MAX: Final = 20
# Read by the unit itself, and by the code that fetches jars.
_OTHERS: Final = {"STATEHOUSE_MODULE", "STATEHOUSE_CACHE_DIR", CONFIG_ENV}


def directives(unit: Path) -> Mapping[str, list[str]]:
    """Return what a unit says, by name; a name may stand more than once."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            found.setdefault(name, []).append(value)
    return found


def variables(unit: Path) -> dict[str, str]:
    return dict(each.split("=", 1) for each in directives(unit).get("Environment", []))


def argv(unit: Path) -> list[str]:
    (start,) = directives(unit)["ExecStart"]
    return shlex.split(start.replace("${STATEHOUSE_MODULE}", "examples.leaderboard.topology"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's files with our program, the units, and systemd's own."""
    program = tmp_path / _PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    theirs = Path("/usr/lib/systemd/system")
    shutil.copytree(theirs, tmp_path / theirs.relative_to("/"), symlinks=True)
    ours = tmp_path / "etc/systemd/system"
    ours.mkdir(parents=True)
    for unit in UNITS.values():
        shutil.copy(unit, ours)
    return tmp_path


def test_there_is_one_for_each_process() -> None:
    assert UNITS.keys() == {"node", "router", "processor", "controller"}


@pytest.mark.feature("units-systemd-systemd")
def test_systemd_takes_them(root: Path) -> None:
    units = sorted(f"/etc/systemd/system/{unit.name}" for unit in UNITS.values())
    command = ["systemd-analyze", f"--root={root}", "--man=no", "verify"]
    done = subprocess.run([*command, *units], capture_output=True, text=True, check=False, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "statehouse" in line]
    assert (done.returncode, ours) == (0, []), done.stderr

    broken = root / "etc/systemd/system/statehouse-node.service"
    broken.write_text(broken.read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    done = subprocess.run([*command, str(units[1])], capture_output=True, text=True, check=False, timeout=60)
    assert "TimeoutStopSecs" in done.stderr, "a check that takes anything proves nothing"


@pytest.mark.feature("units-systemd-systemd")
@pytest.mark.parametrize("name", UNITS)
def test_it_may_do_little_else(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={_EXPOSURE_MAX}", str(UNITS[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("name", UNITS)
def test_command_and_variables_are_understood(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, *arguments = argv(UNITS[name])
    assert program == _PROGRAM
    process = parse(arguments)
    assert process == {"processor": "process"}.get(name, name)
    declared = {each.variable for each in PROCESSES[process].declared().values()}
    given = variables(UNITS[name])
    assert given.keys() - _OTHERS <= declared
    assert given[CONFIG_ENV] == "/etc/statehouse/statehouse.toml"
    file = tmp_path / "statehouse.toml"
    file.write_text('application_id = "app"\nbootstrap = "kafka:9092"\n')
    for variable, value in (given | {CONFIG_ENV: str(file)}).items():
        monkeypatch.setenv(variable, value)
    load(PROCESSES[process], {})


def test_each_may_end_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_APPLICATION_ID", "app")
    stops_s = {name: int(directives(unit)["TimeoutStopSec"][0]) for name, unit in UNITS.items()}
    node, processor = (load(PROCESSES[name], {}) for name in ("node", "process"))
    assert stops_s["node"] >= (node.drain_timeout_ms + node.stop_grace_ms) / 1000 + 30  # type: ignore[attr-defined]
    assert stops_s["processor"] >= processor.stop_timeout_ms / 1000 + 30  # type: ignore[attr-defined]
    for name, unit in UNITS.items():
        assert directives(unit)["KillMode"] == ["mixed"], f"{name} ends its own children"
        assert directives(unit)["Restart"] == ["always"]
