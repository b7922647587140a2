"""A user without rights, who installs what we have built."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.statehouse import Ran

NOBODY: Final = 65_534
# Debian's: the user can't enter the folders of other ones.
PYTHON: Final = "/usr/bin/python3.11"
PATH: Final = "/usr/bin:/bin"


class User:
    """A user with a home and an empty folder of its own, and no rights; another one than ours if we are root."""

    def __init__(self, home: Path) -> None:
        self.home, self.work, self.environment = home, home / "work", home / "env"
        self.work.mkdir()
        (home / "tmp").mkdir()
        self._variables = {
            "HOME": str(home),
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "TMPDIR": str(home / "tmp"),
            "STATEHOUSE_CACHE_DIR": str(home / "cache"),
            # It would take a minute of processor time after the start.
            "STATEHOUSE_CLASS_ARCHIVE": "false",
            # Shows where a program stood that a library of C has ended.
            "PYTHONFAULTHANDLER": "1",
        }
        self._become = []
        if os.geteuid() == 0:
            self._become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
            self._become += ["--bounding-set=-all", "--inh-caps=-all"]
            for path in (home, self.work, home / "tmp"):
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
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the user's folder; all that it prints goes to a file of ours."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [*self._become, *command], cwd=self.work, env=self._variables, stdout=file, stderr=file
            )

    def install(self, wheels: Path, *what: str) -> None:
        """Make the environment, and have its pip install from a folder alone, without asking an index."""
        python = str(self.environment / "bin" / "python")
        if not self.environment.exists():
            self.succeed(PYTHON, "-m", "venv", str(self.environment))
        how = ("--disable-pip-version-check", "install", "--quiet", "--no-index", "--find-links", str(wheels))
        self.succeed(python, "-m", "pip", *how, *what, timeout_s=900.0)

    def succeed(self, *command: str, timeout_s: float = 120.0) -> str:
        """Run a command that must end well; return what it prints."""
        ran = self.run(*command, timeout_s=timeout_s)
        assert ran.code == 0, ran.out + ran.err
        return ran.out

    def python(self, *arguments: str, timeout_s: float = 120.0) -> Ran:
        """Run the environment's Python."""
        return self.run(str(self.environment / "bin" / "python"), *arguments, timeout_s=timeout_s)

    def statehouse(self, *arguments: str, timeout_s: float = 120.0) -> Ran:
        """Run the installed command."""
        return self.run(str(self.environment / "bin" / "statehouse"), *arguments, timeout_s=timeout_s)


@contextmanager
def new_user() -> Iterator[User]:
    """Yield a user whose home is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="statehouse-user-", ignore_cleanup_errors=True) as name:
        yield User(Path(name))
