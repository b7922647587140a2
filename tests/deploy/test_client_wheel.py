"""The client's wheel beside the others: alone, with the oldest and newest requirements, and installed in any order."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from hatch_build import PURE
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.deploy.files import ROOT
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet
from tests.support.statehouse import Ran
from tools.dist import build_wheel, export

_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_CLIENT: Final = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
_UV: Final = str(Path(sys.executable).with_name("uv"))
_READ: Final = (
    "import sys; from statehouse.client import Client\n"
    "with Client(sys.argv[1]) as client: print(client.get('counts', '1').value)"
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client's wheel, and the pure one."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "client"):
        build_wheel(source, folder, PURE, {})
    return folder


@pytest.mark.feature("client-distribution")
def test_the_wheels_share_no_file_and_have_all(wheels: Path) -> None:
    client, whole = (_names(wheels, name) for name in ("statehouse_client", "statehouse"))
    assert client & whole == set()
    assert {name.split("/")[0] for name in client} == {
        "statehouse",
        f"statehouse_client-{_PROJECT['version']}.dist-info",
    }
    tracked = subprocess.run(["git", "ls-files", "statehouse"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(tracked.stdout.split()) <= client | whole


def test_the_client_s_wheel_says_what_it_is(wheels: Path) -> None:
    (path,) = wheels.glob("statehouse_client-*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as opened:
        names = {name.rpartition("/")[2]: name for name in opened.namelist() if ".dist-info/" in name}
        said = message_from_string(opened.read(names["METADATA"]).decode())
        assert opened.read(names["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert said["License-Expression"] == "Apache-2.0"
    assert {Requirement(each) for each in said.get_all("Requires-Dist", [])} == {
        Requirement(each) for each in _CLIENT["dependencies"]
    }


class Environment:
    """A virtual environment that has nothing, our wheels to install from, and the address of a router to ask."""

    def __init__(self, folder: Path, wheels: Path, router: str) -> None:
        self.folder, self.wheels, self._router = folder, wheels, router
        subprocess.run([_UV, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True, timeout=120)

    def uv(self, command: str, *arguments: str) -> None:
        """Run a command of uv's pip on it."""
        place = ["--quiet", "--python", str(self.folder / "bin" / "python")]
        subprocess.run([_UV, "pip", command, *place, *arguments], check=True, timeout=600)

    def pip(self, command: str, *arguments: str) -> None:
        """Run pip on it, which asks no index and installs ours alone."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(self.folder / "bin" / "python")]
        how = ["--no-index", "--no-deps", "--find-links", str(self.wheels)] if command == "install" else ["--yes"]
        subprocess.run([*pip, command, *how, *arguments], check=True, timeout=120)

    def versions(self) -> dict[str, str]:
        """Return what is installed."""
        place = ["--format", "json", "--python", str(self.folder / "bin" / "python")]
        listed = subprocess.run([_UV, "pip", "list", *place], capture_output=True, text=True, check=True, timeout=60)
        return {each["name"]: each["version"] for each in json.loads(listed.stdout)}

    def run(self, program: str, *arguments: str) -> Ran:
        """Run a program of it, outside of our folders."""
        command = [str(self.folder / "bin" / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def ours(self) -> list[Path]:
        """Return the files of ours that are there. Where two distributions share a folder, pip may leave it empty."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        names = ("statehouse*", "processor", "query_service", "router", "pyspark_statehouse")
        return [path for name in names for top in packages.glob(name) for path in top.rglob("*") if path.is_file()]

    def reads(self) -> None:
        """Have the client read from the router."""
        ran = self.run("python", "-c", _READ, self._router)
        assert (ran.code, ran.out) == (0, "Isabelle\n"), ran.err


@pytest.fixture(scope="module")
def router(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real router, whose node has an entry; both run from this tree."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "client-wheel", partitions=1) as fleet:
        fleet.put({"1": "Isabelle"})
        fleet.assign(TaskAssignment(fleet.node("n1").name))
        router = fleet.router()

        def answers() -> bool:
            try:
                return router.get("1").found
            except LookupFailure:
                return False

        poll_until(answers, 60, "the router to answer")
        yield router.target


@pytest.fixture
def empty(tmp_path: Path, wheels: Path, router: str) -> Environment:
    return Environment(tmp_path / "env", wheels, router)


@pytest.mark.feature("client-distribution")
@pytest.mark.long
@pytest.mark.parametrize("resolution", ["lowest", "highest"])
def test_alone_it_reads_with_the_oldest_and_the_newest_requirements(empty: Environment, resolution: str) -> None:
    empty.uv("install", "--resolution", resolution, "--find-links", str(empty.wheels), "statehouse-client")
    installed = empty.versions()
    floors = {Requirement(each).name: re.findall(r">=([\d.]+)", each)[0] for each in _CLIENT["dependencies"]}
    assert installed.keys() == {"statehouse-client", "typing-extensions", *floors}
    at_the_floor = {name for name, version in floors.items() if installed[name] == version}
    assert at_the_floor == (floors.keys() if resolution == "lowest" else set())
    empty.reads()
    assert not (empty.folder / "bin" / "statehouse").exists()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, wheels: Path, router: str) -> Iterator[Environment]:
    """An environment with the requirements of a service, and nothing of ours yet."""
    environment = Environment(tmp_path_factory.mktemp("served") / "env", wheels, router)
    environment.uv("install", "--require-hashes", "-r", str(ROOT / "requirements" / "service.txt"))
    yield environment
    assert environment.ours() == [], "the tests leave it as it was"


@pytest.mark.feature("client-distribution")
@pytest.mark.long
@pytest.mark.parametrize("first", ["statehouse", "statehouse-client"])
def test_what_is_installed_first_or_stays_works_or_says_what_to_install(served: Environment, first: str) -> None:
    second = ({"statehouse", "statehouse-client"} - {first}).pop()
    for removed, kept in ((first, second), (second, first)):
        served.pip("install", first)
        _works_alone(served, first)
        served.pip("install", second)
        assert served.run("statehouse", "--version").code == 0
        served.reads()
        served.pip("uninstall", removed)
        _works_alone(served, kept)
        served.pip("uninstall", kept)
        assert served.ours() == []


@pytest.mark.feature("client-distribution")
@pytest.mark.long
def test_an_upgrade_from_before_the_client_had_its_own_ends_well(served: Environment, tmp_path: Path) -> None:
    old = build_wheel(_as_it_was(tmp_path / "source"), tmp_path / "old", PURE, {})
    served.pip("install", str(old))
    assert served.run("statehouse", "--version").out == "statehouse 0.0.1\n"
    # In the order in which pip installs them: a requirement first.
    served.pip("install", "statehouse-client", "statehouse", "--upgrade")
    remedy = _remedy(served.run("statehouse", "--version"))
    served.pip("install", *remedy)
    assert served.run("statehouse", "--version").out == f"statehouse {_PROJECT['version']}\n"
    served.reads()
    served.pip("uninstall", "statehouse", "statehouse-client")


def _works_alone(environment: Environment, name: str) -> None:
    if name == "statehouse-client":
        environment.reads()
    else:
        assert _remedy(environment.run("statehouse", "status")) == [
            *("--force-reinstall", "--no-deps"),
            f"statehouse-client=={_PROJECT['version']}",
        ]


def _remedy(ran: Ran) -> list[str]:
    """Return what a command that lacks the client says that pip is to install."""
    assert (ran.code, ran.out) == (1, "")
    said = re.fullmatch(r"statehouse: No module named 'statehouse[\w.]+': pip install (.*)\n", ran.err)
    assert said, ran.err
    return said[1].split()


def _as_it_was(source: Path) -> Path:
    """Write a source whose one wheel has all files, as in 0.2.0."""
    export(source)
    project = source / "pyproject.toml"
    text = re.sub(r"^exclude = \[\n  \"statehouse/.*?^\]\n", "", project.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r'^dependencies = \["statehouse-client.*\n', "", text, flags=re.MULTILINE)
    project.write_text(text.replace(f'version = "{_PROJECT["version"]}"', 'version = "0.0.1"', 1))
    return source


def _names(wheels: Path, name: str) -> set[str]:
    (path,) = wheels.glob(f"{name}-*.whl")
    with zipfile.ZipFile(path) as opened:
        return set(opened.namelist())
