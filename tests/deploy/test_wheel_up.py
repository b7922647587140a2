"""From nothing but the wheel: installed by a user without rights, where no Go is, the local cluster comes up.

The wheels of the requirements are made beforehand, at the versions that are locked; all else happens as this user.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hatch_build import PLATFORMS, PROGRAM, PURE
from statehouse.local.jars import default_cache_dir, resolve_jars
from tests.deploy.files import ROOT
from tests.support.statehouse import ANY_PORTS, Ran
from tools.dist import build_wheel

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

NOBODY: Final = 65_534
# Debian's: the user can't enter the folders of other ones.
PYTHON: Final = "/usr/bin/python3.11"
PATH: Final = "/usr/bin:/bin"
UP_S: Final = 900.0


class User:
    """A user with a home and an empty folder of its own, and no rights; another one than ours if we are root."""

    def __init__(self, home: Path) -> None:
        self.home, self.work, self.environment = home, home / "work", home / "env"
        self.work.mkdir()
        self._become = []
        if os.geteuid() == 0:
            self._become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
            self._become += ["--bounding-set=-all", "--inh-caps=-all"]
            for path in (home, self.work):
                os.chown(path, NOBODY, NOBODY)

    def give(self, path: Path) -> None:
        """Let the user have a folder of ours."""
        for folder, _, files in os.walk(path):
            for each in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118 - as os.walk has them
                if os.geteuid() == 0:
                    os.chown(each, NOBODY, NOBODY)

    def run(self, *command: str, timeout_s: float = 120.0) -> Ran:
        """Run a command in the user's folder, with the variables of a fresh login."""
        done = subprocess.run(
            [*self._become, *command],
            cwd=self.work,
            env={
                "HOME": str(self.home),
                "PATH": PATH,
                "LANG": "C.UTF-8",
                "TMPDIR": str(self.home / "tmp"),
                "STATEHOUSE_CACHE_DIR": str(self.home / "cache"),
                # It would take a minute of processor time after the start.
                "STATEHOUSE_CLASS_ARCHIVE": "false",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def statehouse(self, *arguments: str, timeout_s: float = 120.0) -> Ran:
        """Run the installed command."""
        return self.run(str(self.environment / "bin" / "statehouse"), *arguments, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """A folder that everybody can read, with the wheels of all requirements, and our wheels for this machine."""
    with tempfile.TemporaryDirectory(prefix="statehouse-wheels-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--require-hashes", "--no-deps", "--no-build-isolation"]
        locked = [*pip, "-w", name, "-r", str(ROOT / "requirements" / "processor.txt")]
        subprocess.run(locked, check=True, timeout=1200)
        machine = platform.machine()
        build_wheel(ROOT, folder, next(name for name, each in PLATFORMS.items() if each.machine == machine), {})
        build_wheel(ROOT / "client", folder, PURE, {})
        yield folder


@pytest.fixture(scope="module")
def user(wheels: Path) -> Iterator[User]:
    """The user, with a virtual environment in which the package is, and with the jars that a first start downloads."""
    assert shutil.which("go", path=PATH) is None
    with tempfile.TemporaryDirectory(prefix="statehouse-user-", ignore_cleanup_errors=True) as name:
        made = User(Path(name))
        for kind in ("broker", "spark"):
            resolve_jars(kind)
        shutil.copytree(default_cache_dir() / "jars", made.home / "cache" / "jars")
        (made.home / "tmp").mkdir()
        made.give(made.home)
        for command in (
            [PYTHON, "-m", "venv", str(made.environment)],
            [*installs(made), "--find-links", str(wheels), "statehouse[processor,http]"],
        ):
            ran = made.run(*command, timeout_s=900)
            assert ran.code == 0, ran.out + ran.err
        yield made


def installs(user: User) -> list[str]:
    """Return the beginning of a command by which the environment's pip installs without asking an index."""
    python = str(user.environment / "bin" / "python")
    return [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]


@pytest.mark.feature("wheel-alone-empty")
def test_up_answers_through_the_proxy(user: User) -> None:
    try:
        ran = user.statehouse("up", "--nodes", "2", *ANY_PORTS, timeout_s=UP_S)
        assert ran.code == 0, ran.out + ran.err
        answered = user.statehouse("get", "leader-boards", "1", "-o", "json")
        assert answered.code == 0, answered.err
        assert "Isabelle" in answered.out
        status = user.statehouse("status")
        assert "router served by  proxy" in status.out, status.out
        installed = next(user.environment.glob(f"lib/*/site-packages/{PROGRAM}"))
        served = user.statehouse("logs", "--lines", "10000", "router", "node-a", "node-b")
        assert served.out.count(str(installed)) >= 3, served.out
        page = user.run(PYTHON, "-c", PAGE.format(ran.out.split("page", 1)[1].split()[0]))
        assert page.out.startswith("200 text/html"), page.err
    finally:
        down = user.statehouse("down", timeout_s=UP_S)
    assert down.code == 0, down.err
    assert not (user.work / ".statehouse").exists()
    assert [*user.work.iterdir()] == []


PAGE: Final = "import urllib.request as r; a = r.urlopen('{}', timeout=10); print(a.status, a.headers['content-type'])"


@pytest.mark.feature("package-without-proxy")
def test_the_pure_wheel_says_what_it_lacks(wheels: Path, user: User, tmp_path: Path) -> None:
    pure = build_wheel(ROOT, tmp_path, PURE, {})
    shutil.copy(pure, wheels)
    other = user.home / "other"
    (client,) = wheels.glob("statehouse_client-*.whl")
    ran = user.run(*installs(user), "--no-deps", "--target", str(other), str(client), str(wheels / pure.name))
    assert ran.code == 0, ran.err
    program = (
        f"import sys; sys.path.insert(0, {str(other)!r})\n"
        "from statehouse.observability import logs; logs.configure('INFO')\n"
        "from statehouse.link.proxy import proxy_for; from statehouse.settings import ServerSettings\n"
        "assert proxy_for(ServerSettings(application_id='app'), '127.0.0.1:0', print) is None"
    )
    said = user.run(str(user.environment / "bin" / "python"), "-c", program)
    assert said.code == 0, said.err
    assert "install the wheel of this platform" in said.out + said.err
