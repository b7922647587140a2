"""Other versions of Spark, each in an environment of its own on top of the tests' one, in .tools/."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statehouse.local.jars import waiting_lock
from tests.support.tools import TOOLS

# By what docs/compatibility.md calls it; the newest final one of each that there was.
VERSIONS: Final = {"4.2": "4.2.0", "4.1": "4.1.1", "4.0": "4.0.1", "3.5": "3.5.7"}
_INSTALL_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class SparkInstall:
    """A version of Spark, and the Python that has it."""

    minor: str
    python: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs that run with it: Spark's workers run this Python, too."""
        gone = {"SPARK_HOME", "PYTHONPATH"}
        kept = {name: value for name, value in os.environ.items() if name not in gone}
        return kept | {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}

    def run(self, program: str, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a program's text to its end."""
        command = [self.python, "-c", program, *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout_s
        )


def installed(minor: str) -> SparkInstall:
    """Return a version of Spark; it is downloaded, some 400 MB, unless it was before.

    Its environment has pyspark and py4j of its own, and all else from the tests' environment.
    """
    version = VERSIONS[minor]
    folder = TOOLS / f"pyspark-{version}"
    python = folder / "bin" / "python"
    with waiting_lock(TOOLS / f"{folder.name}.lock"):
        _install(folder, version, minor)
    found = subprocess.run([str(python), "-c", _WHICH], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [version, str(folder)], found.stdout
    return SparkInstall(minor, str(python))


def _install(folder: Path, version: str, minor: str) -> None:
    is_ready = folder / ".ready"
    if is_ready.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # The packages in this folder itself come first on the path.
    beneath = sysconfig.get_path("purelib")
    (packages / "beneath.pth").write_text(f"import site; site.addsitedir({beneath!r})\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # Spark Connect compresses with the last one, and the tests' environment lacks it.
    wanted = [f"pyspark=={version}", *(["py4j==0.10.9.7"] if minor == "3.5" else []), "zstandard==0.25.0"]
    subprocess.run([*pip, "--target", str(packages), *wanted], check=True, timeout=_INSTALL_S)
    is_ready.touch()


_WHICH: Final = "import sys, pyspark; print(pyspark.__version__, pyspark.__file__.partition('/lib/python')[0])"
