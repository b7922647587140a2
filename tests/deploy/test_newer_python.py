"""Python 3.13 with Java 21, as Debian 13 has both: the wheels installed by a user without rights, tested and run.

The requirements are those that are locked. The tests of what clients import run against the installed wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hatch_build import PURE
from tests.deploy.files import ROOT
from tests.deploy.images import NEWER, STORE, USER, command_in, mounted_base, needed, pip_variables
from tests.deploy.wheels import build_platform_wheel, copy_jars, pinned
from tests.support.statehouse import ANY_PORTS, Ran
from tools.dist import build_wheel

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

_HOME: Final = "/mnt"
_BIN: Final = f"{_HOME}/env/bin"
_CACHE: Final = "/srv"
_TOOLS: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
_TESTS: Final = ("tests/unit/statehouse/client", "tests/unit/statehouse/contract")
_INSTALL_S: Final = 1_800.0
_UP_S: Final = 900.0


class Debian:
    """The other system, on this machine's network, and a user's home in it."""

    def __init__(self, root: Path, home: Path) -> None:
        self.home = home
        cache = STORE / "pip"  # the next run downloads nothing
        cache.mkdir(exist_ok=True)
        os.chown(cache, int(USER), int(USER))
        self._root, self._binds = root, {_HOME: home, _CACHE: cache}
        self._variables = {
            **pip_variables(),
            "HOME": _HOME,
            "PATH": f"{_BIN}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PIP_CACHE_DIR": _CACHE,
            "STATEHOUSE_CACHE_DIR": f"{_HOME}/cache",
            # It would take a minute of processor time after the start.
            "STATEHOUSE_CLASS_ARCHIVE": "false",
        }

    def run(self, *argv: str, work: str = f"{_HOME}/work", timeout_s: float = 300.0) -> Ran:
        """Run a command as the user."""
        command = command_in(self._root, argv, self._variables, self._binds, work)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
        return Ran(done.returncode, done.stdout, done.stderr)

    def succeed(self, *argv: str, work: str = f"{_HOME}/work", timeout_s: float = 300.0) -> str:
        """Run a command that must end well; return what it prints."""
        ran = self.run(*argv, work=work, timeout_s=timeout_s)
        assert ran.code == 0, f"{argv}:\n{ran.out[-6000:]}\n{ran.err[-4000:]}"
        return ran.out


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    """The system, with an environment in which the wheels are, and the jars that a first start downloads."""
    assert os.geteuid() == 0, "a system is mounted as root"
    assert needed() == [], f"these are missing; as root: apt-get install buildah mmdebstrap ({', '.join(needed())})"
    home = tmp_path_factory.mktemp("debian")
    for name in ("work", "wheels", "requirements"):
        (home / name).mkdir()
    build_platform_wheel(home / "wheels")
    build_wheel(ROOT / "client", home / "wheels", PURE, {})
    shutil.copy(ROOT / "requirements" / "processor.txt", home / "requirements")
    (home / "requirements" / "tools.txt").write_text("\n".join(pinned(_TOOLS)))
    shutil.copytree(ROOT / "tests", home / "project" / "tests", ignore=shutil.ignore_patterns("__pycache__", "target"))
    shutil.copy(ROOT / "pyproject.toml", home / "project")
    copy_jars(home / "cache")
    subprocess.run(["chown", "--recursive", f"{USER}:{USER}", str(home)], check=True, timeout=120)
    with mounted_base(NEWER) as root:
        # Spark asks Java for the user's name.
        added = ("useradd", "--uid", USER, "--home-dir", _HOME, "somebody")
        subprocess.run(["chroot", str(root), *added], check=True, timeout=60)
        made = Debian(root, home)
        made.succeed("python3", "-m", "venv", f"{_HOME}/env")
        install = (f"{_BIN}/python", "-m", "pip", "install", "--quiet")
        locked = ("--require-hashes", "-r", f"{_HOME}/requirements/processor.txt")
        made.succeed(*install, *locked, timeout_s=_INSTALL_S)
        ours = ("--no-index", "--find-links", f"{_HOME}/wheels", "statehouse[processor,http,tracing]")
        made.succeed(*install, *ours, timeout_s=_INSTALL_S)
        made.succeed(*install, "-r", f"{_HOME}/requirements/tools.txt", timeout_s=_INSTALL_S)
        yield made


@pytest.mark.feature("python-3-13-java-21")
def test_it_has_the_versions_that_it_is_here_for(debian: Debian) -> None:
    assert debian.succeed("python", "-V").startswith("Python 3.13.")
    ran = debian.run("java", "-version")
    assert re.search(r'version "21\.', ran.err), ran


@pytest.mark.feature("python-3-13-java-21")
def test_the_client_s_tests_pass_on_the_installed_wheels(debian: Debian) -> None:
    project = f"{_HOME}/project"
    where = debian.succeed("python", "-c", "import statehouse.client; print(statehouse.client.__file__)", work=project)
    assert where.startswith(f"{_HOME}/env/"), where
    said = debian.succeed("python", "-m", "pytest", "-q", "-m", "not long", *_TESTS, work=project, timeout_s=900)
    counted = re.search(r"(\d+) passed", said)
    assert counted, said[-2000:]
    assert int(counted[1]) > 200, said[-500:]
    assert "skipped" not in said.splitlines()[-1]


@pytest.mark.feature("python-3-13-java-21")
def test_spark_can_run_the_queries_of_an_example(debian: Debian) -> None:
    assert "Spark can run its queries" in debian.succeed("statehouse", "check", "leaderboard")


@pytest.mark.feature("python-3-13-java-21")
def test_up_answers_a_lookup(debian: Debian) -> None:
    try:
        debian.succeed("statehouse", "up", "--nodes", "2", *ANY_PORTS, timeout_s=_UP_S)
        assert "Isabelle" in debian.succeed("statehouse", "get", "leader-boards", "1", "-o", "json")
        assert "router served by  proxy" in debian.succeed("statehouse", "status")
    finally:
        down = debian.run("statehouse", "down", timeout_s=_UP_S)
    assert down.code == 0, down.err
    assert [*(debian.home / "work").iterdir()] == []
