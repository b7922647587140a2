"""Errors of the local tooling.

    LocalError
    ├── JavaNotFound:        no Java runtime at all
    ├── JavaTooOld:          a Java runtime, older than Kafka and Spark accept
    ├── PortTaken:           a port that was asked for is in use
    ├── ResolverMissing:     the package that carries the jar resolver is not installed
    ├── ResolverUnreachable: the jars could not be fetched
    ├── ArchiveFailed:       Java wrote no archive of its classes
    ├── BrokerDied:          the broker's process ended when it should have been running
    └── BrokerNotReady:      the broker runs, but did not answer within the deadline

Every message ends with what to do about it: these reach people who have just cloned the project.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class LocalError(RuntimeError):
    """Root of everything `statehouse.local` raises on purpose."""


class JavaNotFound(LocalError):
    """There is no `java` that can be run."""

    def __init__(self, looked_in: str, required_major: int) -> None:
        super().__init__(
            f"no Java runtime found ({looked_in}). Install Java {required_major} or newer, and put `java` on the PATH "
            "or set JAVA_HOME to its directory."
        )


class JavaTooOld(LocalError):
    """The `java` that would be used is older than the broker and Spark need."""

    def __init__(self, path: Path, major: int, required_major: int) -> None:
        super().__init__(
            f"{path} is Java {major}, and Java {required_major} or newer is needed. Install a newer one, and set "
            "JAVA_HOME to its directory (it is looked at before the PATH)."
        )


class PortTaken(LocalError):
    """Something already listens on the port that was asked for."""

    def __init__(self, port: int, setting: str, host: str) -> None:
        super().__init__(
            f"port {port} on {host} is in use. Stop whatever listens there, or choose another with {setting} "
            "(0 picks a free one)."
        )


class ResolverMissing(LocalError):
    """pyspark, whose jar resolver fetches our jars, is absent or incomplete."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"cannot resolve jars: {detail}. They are fetched with the resolver inside pyspark: "
            "pip install 'statehouse[processor]'."
        )


class ResolverUnreachable(LocalError):
    """The resolver ran but did not fetch the jars; the message quotes the end of its output."""

    def __init__(self, what: str, reason: str, output: Sequence[str], settings_variable: str) -> None:
        super().__init__(
            f"could not fetch {what}: {reason}. Check the network; behind a proxy pass Java's proxy properties in "
            "JAVA_TOOL_OPTIONS, and for a mirror of your own set "
            f"{settings_variable} to an Ivy settings file. What was fetched so far is kept for the next try."
            f"{_quoted('The resolver', output)}"
        )


class ConnectorUnknown(LocalError):
    """There is no Kafka connector that is known to fit the version of Spark."""

    def __init__(self, spark: str, known: Sequence[str]) -> None:
        super().__init__(
            f"which Kafka connector fits Spark {spark} is not known, only of {', '.join(known)}: install one of these, "
            "or name the connector yourself, as in spark.jars.packages"
        )


class ArchiveFailed(LocalError):
    """Java wrote no archive of its classes, or doesn't start with the one that it wrote."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(
            f"no class archive of {program} was made: {reason}. Everything works without one; starts take longer."
        )


class BrokerDied(LocalError):
    """The broker's process ended; the message has its exit code (negative: the signal) and its last log lines."""

    def __init__(self, what: str, exit_code: int, log_path: Path, log_lines: Sequence[str]) -> None:
        super().__init__(
            f"{what} ended with exit code {exit_code}. The cause is usually in its last lines, below; all of them are "
            f"in {log_path}.{_quoted('The broker', log_lines)}"
        )


class BrokerNotReady(LocalError):
    """The broker was still starting when the deadline passed. It has been stopped."""

    def __init__(self, deadline_s: float, log_path: Path, log_lines: Sequence[str]) -> None:
        super().__init__(
            f"the broker gave no metadata answer within {deadline_s:g} s and was stopped. On a busy machine allow more "
            f"time with ready_timeout_s; otherwise see {log_path}.{_quoted('The broker', log_lines)}"
        )


def _quoted(speaker: str, lines: Sequence[str]) -> str:
    if not lines:
        return f" {speaker} printed nothing."
    return f" {speaker} said:\n" + "\n".join(f"    {line}" for line in lines)
