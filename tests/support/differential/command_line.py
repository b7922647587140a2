"""The command line as a door: its entry in this process, by the words that a user types."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode, code_of
from statehouse.cli.main import app
from statehouse.errors import LookupFailure, Reason
from tests.support.differential.cases import AS_OF, BATCH, COUNT, GET, OF_A_KEY, SCAN, Key, Read
from tests.support.differential.outcomes import ABSENT, Outcome, of_body

_REFUSAL: Final = re.compile(r"^error: ([A-Z_]+): ", re.MULTILINE)
_COMMANDS: Final[Mapping[str, str]] = {AS_OF: GET}


class CommandLine:
    """The command line. Its bytes are shown in hex."""

    def __init__(self, target: str) -> None:
        self._target = target

    def ask(self, read: Read) -> Outcome:
        """Make a read."""
        done = CliRunner().invoke(app, list(self._words(read)))
        if done.exit_code not in {ExitCode.DONE, ExitCode.NOT_FOUND} and not (read.kind == BATCH and done.stdout):
            return Outcome(_refused(done), str(done.exit_code))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        if read.kind in {GET, AS_OF}:
            return Outcome(_of_lookup(json.loads(done.stdout)))
        if read.kind == COUNT:
            return Outcome(json.loads(done.stdout)["count"])
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if read.kind == BATCH:
            return Outcome([_of_lookup(each) for each in lines])
        return Outcome([of_body({name: _in_base64(each) for name, each in line.items()}) for line in lines])

    def _words(self, read: Read) -> Iterator[str]:
        yield _COMMANDS.get(read.kind, read.kind.replace(" ", "-"))
        yield from ("-o", "json", "--router", self._target, "--timeout", "60")
        for name, each in read.bounds.items():
            yield from ("--active-only",) if name == "active_only" else (f"--{name.replace('_', '-')}", str(each))
        for name, each in read.times.items():
            # The times of a key's windows are --from and --to; those of a scan stand beside keys.
            short = read.kind in OF_A_KEY or read.kind == AS_OF
            yield from (f"--{(name.removesuffix('_ms') if short else name).replace('_', '-')}", str(each))
        yield from ("--raw",) if read.raw else ()
        yield from ("--hex-keys",) if read.has_bytes else ()
        yield from (f"--{name}={_text(key)}" for name, key in read.ends.items())
        if read.kind in OF_A_KEY or read.kind.startswith(SCAN):
            yield from ("--reverse",) if read.reverse else ()
            yield from ("--page-size", str(read.page_size))
            yield from () if read.is_whole else ("--limit", str(read.page_size))
        yield from ("--exact",) if read.kind == COUNT else ()
        yield from ("--", read.store, *map(_text, read.keys))


def _text(key: Key) -> str:
    return key if isinstance(key, str) else f"0x{key.hex()}"


def _refused(done: Result) -> tuple[str, str]:
    """Return the reason that a command gives, which has one exit code."""
    found = _REFUSAL.search(done.stderr)
    if found is None:
        raise AssertionError((done.exit_code, done.stdout, done.stderr, done.exception))
    assert done.exit_code == code_of(LookupFailure(Reason[found[1]], "")), done.stderr
    return ("refused", found[1])


def _of_lookup(answer: Any) -> Any:
    if answer.get("failure") is not None:
        return ("refused", answer["failure"]["reason"])
    return ("found", _in_base64(answer["value"]), answer["timestamp_ms"]) if answer["found"] else ABSENT


def _in_base64(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return {"base64": base64.urlsafe_b64encode(bytes.fromhex(value["hex"])).decode()}
    return value
