"""The archive of the classes of Spark's driver, with which its JVM starts sooner.

`python -m processor.spark.class_archive` makes it; a driver that finds it uses it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statehouse.cli.exits import Terminated, sigterm_raises
from statehouse.errors import ConfigurationError
from statehouse.local.class_archives import ClassArchives, joined
from statehouse.local.errors import JavaNotFound, LocalError
from statehouse.local.jars import spark_home
from statehouse.local.java import find_java, locate_java
from statehouse.local.process import ManagedProcess
from statehouse.settings import ClassArchiveSettings, load

_PROGRAM: Final = "spark"
_SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Spark's launcher gives these to the driver's JVM, before those of `spark.driver.extraJavaOptions`."""
_OPTIONS_OF_JAVA: Final = (_SUBMIT_OPTIONS, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_OPTIONS_OF_SPARK: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
# It takes about a minute of processor time. With idle priority on a busy machine it takes as long as the other work.
_TRAINED_WITHIN_S: Final = 1800.0


@contextmanager
def driver_from_archive(conf: Mapping[str, str]) -> Iterator[None]:
    """Have a driver's JVM that starts in the context use the archive, if there is one and no option says otherwise."""
    given = [os.environ.get(name, "") for name in _OPTIONS_OF_JAVA]
    given += [conf.get(name, "") for name in _OPTIONS_OF_SPARK]
    try:
        options = _archives(locate_java()).options(given)
    except JavaNotFound:  # Spark says so
        options = []
    with submitted_with(options):
        yield


@contextmanager
def submitted_with(options: Sequence[str]) -> Iterator[None]:
    """Have a driver's JVM that starts in the context get these options, before those of the environment."""
    before = os.environ.get(_SUBMIT_OPTIONS)
    if options:
        os.environ[_SUBMIT_OPTIONS] = joined(options, before or "")
    try:
        yield
    finally:
        if before is not None:
            os.environ[_SUBMIT_OPTIONS] = before
        else:
            os.environ.pop(_SUBMIT_OPTIONS, None)


def _archives(java: Path) -> ClassArchives:
    return ClassArchives(_PROGRAM, java, sorted((spark_home() / "jars").glob("*.jar")))


def _train(archive: Path, log: Path) -> None:
    command = [sys.executable, "-m", "processor.run.class_training", str(archive)]
    process = ManagedProcess("the training", command, log)
    process.start()
    try:
        process.wait_ready(lambda: process.exit_code == 0, _TRAINED_WITHIN_S)
    finally:
        process.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive, unless there is one; the exit code is 1 if it can't be made."""
    parser = argparse.ArgumentParser(
        prog="python -m processor.spark.class_archive",
        description="Make the archive of the classes of Spark's driver, unless there is one: Spark then starts sooner. "
        "It runs a small application on a broker of its own for about a minute, and takes some 200 MB in the cache.",
    )
    parser.add_argument("--idle", action="store_true", help="take only processor time that nothing else wants")
    if parser.parse_args(arguments).idle:
        _become_idle()
    try:
        if not load(ClassArchiveSettings, {}).class_archive:
            _say("class_archive is off: no archive is made")
            return 0
        with sigterm_raises():
            archives = _archives(find_java())
            if archives.find() is None:
                _say("making an archive of Spark's classes once, so that Spark starts sooner (about a minute) ...")
            _say(f"class archive: {archives.make(_train)}")
    except (LocalError, ConfigurationError) as error:
        _say(f"error: {error}")
        return 1
    except (Terminated, KeyboardInterrupt):
        return 1
    return 0


def _become_idle() -> None:
    if hasattr(os, "SCHED_IDLE"):  # Linux
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
