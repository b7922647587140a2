"""Errors of the local tooling. Every message says at its end what to do: they reach people who are new here."""

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


class SparkJavaEnded(LocalError):
    """The Java of a new enough version that Spark starts has ended before Spark was up."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java has ended at its start: what it printed above says why. Correct that, or set JAVA_HOME to "
            "the directory of another Java."
        )


class PortTaken(LocalError):
    """Something already listens on the port that was asked for."""


class ResolverMissing(LocalError):
    """pyspark, whose jar resolver fetches our jars, is absent or incomplete."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"cannot resolve jars: {detail}. They are fetched with the resolver inside pyspark: "
            "pip install 'statehouse[processor]'."
        )


class ResolverUnreachable(LocalError):
    """The resolver ran but did not fetch the jars; the message quotes the end of its output."""


class ConnectorUnknown(LocalError):
    """There is no Kafka connector that is known to fit the version of Spark."""


class CompilationFailed(LocalError):
    """The compiler refused our Java sources; the message quotes what it said."""

    def __init__(self, compiler: str, lines: Sequence[str]) -> None:
        super().__init__(
            f"our classes for Spark's Java can't be compiled by {compiler}. The wheels of a release have them: install "
            f"statehouse from one.{quoted('The compiler', lines)}"
        )


class ArchiveFailed(LocalError):
    """Java wrote no archive of its classes, or doesn't start with the one that it wrote."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(
            f"no class archive of {program} was made: {reason}. Everything works without one; starts take longer."
        )


class BrokerDied(LocalError):
    """The broker's process ended; the message has its exit code (negative: the signal) and its last log lines."""


class BrokerNotReady(LocalError):
    """The broker was still starting when the deadline passed. It has been stopped."""

    def __init__(self, deadline_s: float, log_path: Path, log_lines: Sequence[str]) -> None:
        super().__init__(
            f"the broker gave no metadata answer within {deadline_s:g} s and was stopped. On a busy machine allow more "
            f"time with ready_timeout_s; otherwise see {log_path}.{quoted('The broker', log_lines)}"
        )


def quoted(speaker: str, lines: Sequence[str]) -> str:
    """Return the end of a message that says what a program has printed."""
    if not lines:
        return f" {speaker} printed nothing."
    return f" {speaker} said:\n" + "\n".join(f"    {line}" for line in lines)
