"""Find the Java runtime that runs the broker, Spark and the jar resolver, and run short programs with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from statehouse.local.errors import JavaNotFound, JavaTooOld

# What Spark 4 and a Kafka 4 broker both need.
REQUIRED_MAJOR: Final = 17

# `java -version` prints e.g. `openjdk version "17.0.15"`, or `java version "1.8.0_402"` up to Java 8.
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S: Final = 30


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` program that JAVA_HOME names, else the one on the PATH.

    A JAVA_HOME that is set but wrong is an error, not a reason to look further: the user meant it, and Spark would
    follow it, too.

    Raises JavaNotFound or JavaTooOld.
    """
    path = locate_java(environ)
    major = _major_of(path, environ)
    if major < REQUIRED_MAJOR:
        raise JavaTooOld(
            f"{path} is Java {major}, and Java {REQUIRED_MAJOR} or newer is needed. Install a newer one, and set "
            "JAVA_HOME to its directory (it is looked at before the PATH)."
        )
    return path


def locate_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the same program without asking it for its version.

    Raises JavaNotFound.
    """
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise JavaNotFound(f"JAVA_HOME is {home}, and {path} is not a program", REQUIRED_MAJOR)
        return path
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise JavaNotFound("JAVA_HOME is not set, and no `java` is on the PATH", REQUIRED_MAJOR)
    return Path(found)


def run_quietly(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, without input; `stdout` has all that it prints.

    Raises OSError, or subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )


def _major_of(path: Path, environ: Mapping[str, str]) -> int:
    try:
        answer = run_quietly([str(path), "-version"], _VERSION_TIMEOUT_S, environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"{path} could not be run: {error}", REQUIRED_MAJOR) from error
    text = answer.stdout.decode(errors="replace")
    match = _VERSION.search(text)
    if match is None:
        # macOS has a stub `java` that only tells people to install one.
        raise JavaNotFound(f"{path} -version printed no version, but: {text.strip()[:200]!r}", REQUIRED_MAJOR)
    return int(match.group(1))
