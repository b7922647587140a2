"""Exit codes, and how failures are shown: a clear message on stderr, never a traceback.

Scripts rely on the codes, so they are few and stable; docs/errors.md says what each means.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final

from statehouse.errors import ConfigurationError, LookupFailure, Reason, StatehouseError, reason_name
from statehouse.runtime.extras import without_package


class ExitCode(IntEnum):
    """What the command's exit code says."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130
    TERMINATED = 143


_USAGE: Final = frozenset(
    {Reason.INVALID_KEY, Reason.INVALID_REQUEST, Reason.INVALID_PAGE_TOKEN, Reason.WRONG_STORE_KIND}
)
# An unknown store is an error and not "not found": that code must mean that a replica vouched for a key's absence.
_ERRORS: Final = frozenset(
    {
        Reason.UNKNOWN_STORE,
        Reason.VALUE_UNDECODABLE,
        Reason.HOP_LIMIT,
        Reason.MESSAGE_TOO_LARGE,
        Reason.INTERNAL,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    }
)


class Terminated(BaseException):
    """SIGTERM, raised in the main thread wherever it is, so that clean-up runs as for Ctrl-C."""


def code_of(failure: LookupFailure) -> ExitCode:
    """Return the exit code for a failed lookup."""
    if failure.reason in _USAGE:
        return ExitCode.USAGE
    return ExitCode.ERROR if failure.reason in _ERRORS else ExitCode.UNAVAILABLE


def explain(failure: LookupFailure) -> list[str]:
    """Return a failed lookup for people: what, each candidate's verdict, and what to do."""
    lines = [f"{failure.reason.name}: {failure.message}"]
    for candidate in failure.candidates:
        verdict = reason_name(candidate.reason) if candidate.reason else "usable"
        detail = f" - {candidate.detail}" if candidate.detail else ""
        lines.append(f"  {candidate.host.instance_id}: {verdict}{detail}")
    lines.extend(getattr(failure, "__notes__", ()))
    if "target" not in failure.metadata:  # then the client itself has said what to do
        lines.append(f"hint: {failure.remedy}")
    return lines


def run_reporting(work: Callable[[], object]) -> int:
    """Run a command's work; show a failure on stderr, and return the exit code."""
    try:
        _naming_extras(work)
    except LookupFailure as failure:
        _tell(*explain(failure))
        return code_of(failure)
    except StatehouseError as error:  # settings and contracts
        _tell(str(error))
        return ExitCode.USAGE if isinstance(error, ConfigurationError) else ExitCode.ERROR
    except KeyboardInterrupt:
        _tell("interrupted")
        return ExitCode.INTERRUPTED
    except Terminated:
        _tell("terminated")
        return ExitCode.TERMINATED
    except RuntimeError as error:
        # Loaded late: only a program that uses the local tooling can have raised its errors.
        local_errors = sys.modules.get("statehouse.local.errors")
        if local_errors is None or not isinstance(error, local_errors.LocalError):
            raise
        _tell(str(error))
        return ExitCode.ERROR
    return ExitCode.DONE


def _naming_extras(work: Callable[[], object]) -> None:
    """Run a command's work, which imports late what is slow to import, and may find that it isn't there."""
    try:
        work()
    except ModuleNotFoundError as error:
        told = without_package("this", error)
        if told is None:
            raise
        raise told from error


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` in this context, for commands that have something to clean up."""

    def terminate(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(first: str, *more: str) -> None:
    print(f"error: {first}", *more, sep="\n", file=sys.stderr)
