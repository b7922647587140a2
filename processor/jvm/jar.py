"""The jar with our classes for Spark's Java: a wheel's own, else one that is compiled once, into the cache.

`python -m processor.jvm.jar TARGET` writes it as wheels have it.

Sources are in `src/`, and in `src-4.1/` those for Spark 4.1 and newer, and so on. Classes may use what Spark and its
Kafka connector bring.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from statehouse.local.errors import CompilationFailed, LocalError
from statehouse.local.jars import (
    NEWEST_SPARK,
    class_path,
    default_cache_dir,
    installed_spark,
    resolve_jars,
    spark_home,
    waiting_lock,
)
from statehouse.local.java import REQUIRED_MAJOR, find_java, run_quietly

_ROOM: Final = Path(__file__).parent
# hatch_build.py puts it there.
_PACKAGED: Final = _ROOM / "statehouse-task.jar"
_ECLIPSE: Final = "org.eclipse.jdt.internal.compiler.batch.Main"
_COMPILE_TIMEOUT_S: Final = 300
_OUTPUT_LINES_MAX: Final = 30


def task_jar(cache_dir: Path | None = None) -> Path:
    """Return the jar; compile it first if neither the wheel nor the cache has it.

    Several processes may call together: one compiles while the others wait for it.

    Args:
        cache_dir: the cache; None is the one of `default_cache_dir`.

    Raises:
        CompilationFailed: the compiler refuses the sources.
        LocalError: of find_java and resolve_jars.

    """
    if _PACKAGED.exists():
        return _PACKAGED
    spark = installed_spark()
    found = sources(spark)
    root = (cache_dir or default_cache_dir()) / "jars"
    jar = root / f"task-{_digest(found, spark)}" / _PACKAGED.name
    if jar.exists():
        return jar
    root.mkdir(parents=True, exist_ok=True)
    with waiting_lock(root / f"{jar.parent.name}.lock"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(prefix=f"{jar.parent.name}.", dir=root) as scratch:
                staged = Path(scratch) / jar.name
                write_jar(found, staged)
                jar.parent.mkdir(exist_ok=True)
                staged.rename(jar)
    return jar


def sources(spark: str) -> list[Path]:
    """Return the sources for a version of Spark, as in `4.2.0`."""
    folders = [
        folder
        for folder in _ROOM.glob("src*")
        if "-" not in folder.name or _minor(folder.name.partition("-")[2]) <= _minor(spark)
    ]
    return sorted(path for folder in folders for path in folder.rglob("*.java"))


def write_jar(found: Sequence[Path], target: Path) -> None:
    """Compile sources, and write a jar whose bytes depend on them and on the compiler alone.

    Raises:
        CompilationFailed: the compiler refuses them.
        LocalError: of find_java and resolve_jars.

    """
    with tempfile.TemporaryDirectory() as scratch:
        classes = Path(scratch)
        _compile(found, classes)
        with zipfile.ZipFile(target, "w") as jar:
            for path in sorted(classes.rglob("*.class")):
                # Such an entry's time is always the same one.
                jar.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix()), path.read_bytes())


def write_packaged_jar(target: Path) -> None:
    """Write the jar as wheels have it: for all versions of Spark.

    Raises:
        CompilationFailed: the compiler refuses the sources.
        LocalError: Spark isn't installed, or not the newest version that we know; or of find_java and resolve_jars.

    """
    spark = installed_spark()
    if _minor(spark) != _minor(NEWEST_SPARK):
        raise LocalError(f"Spark {spark} is installed, and the jar of a wheel is made with Spark {NEWEST_SPARK}")
    write_jar(sources(spark), target)


def _compile(found: Sequence[Path], classes: Path) -> None:
    used = (*sorted((spark_home() / "jars").glob("*.jar")), *resolve_jars("spark"))
    compiler = _compiler()
    options = ["-proc:none", "-nowarn", "-encoding", "UTF-8", "-cp", class_path(used), "-d", str(classes)]
    try:
        done = run_quietly([*compiler, *options, *map(str, found)], _COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompilationFailed(compiler[0], [f"nothing in {_COMPILE_TIMEOUT_S} s"]) from error
    if done.returncode:
        lines = done.stdout.decode(errors="replace").splitlines()
        raise CompilationFailed(compiler[0], lines[:_OUTPUT_LINES_MAX])


def _compiler() -> list[str]:
    """Return the command of Java's own compiler; if that isn't installed, of Eclipse's."""
    java, major = find_java(), str(REQUIRED_MAJOR)
    javac = java.resolve().with_name("javac")
    if os.access(javac, os.X_OK):
        return [str(javac), "--release", major]
    # It would need a file of the JDK for `--release`.
    return [str(java), "-cp", class_path(resolve_jars("compiler")), _ECLIPSE, "-source", major, "-target", major]


def _digest(found: Iterable[Path], spark: str) -> str:
    """Return what the jar's folder in the cache has in its name."""
    digest = hashlib.sha256(spark.encode())
    for path in found:
        digest.update(f"\0{path.relative_to(_ROOM)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _minor(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(int(part) for part in version.split(".")[:2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the jar as wheels have it; the exit code is 1 if it can't be made here."""
    parser = argparse.ArgumentParser(
        prog="python -m processor.jvm.jar",
        description="Compile our classes for Spark's Java into a jar, as wheels have it.",
    )
    parser.add_argument("target", type=Path, help="the jar")
    try:
        write_packaged_jar(parser.parse_args(arguments).target)
    except LocalError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
