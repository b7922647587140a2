"""The commands on pages: which of them are run, and a terminal that types them as a reader would.

A block of commands is run by a test, or stands below `<!-- not run here -->`, with a reason if it has one:
`<!-- not run here: it runs until it is stopped -->`. Below a page's title the mark holds for the whole page.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from tests.support.console import ELIDED, Command, commands
from tests.support.tools import path_with_tools

_ROOT: Final = Path(__file__).parents[2]
_MARK: Final = r"<!-- not run here(?:: [^\n]+)? -->\n+"
_MARKED_PAGE: Final = re.compile(rf"# .*\n+{_MARK}")
_BLOCK: Final = re.compile(rf"({_MARK})?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHELLS: Final = ("sh", "bash", "console")
# Headers of tables, roles, states and reasons are the words of an output that don't differ from run to run.
_WORD: Final = re.compile(r"\b[A-Z][A-Z_]{2,}\b")
_COMMAND_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class Block:
    """A fenced block with commands."""

    text: str
    is_session: bool
    """Whether it shows commands after `$` and what they print, and not commands alone."""
    is_run: bool

    @property
    def commands(self) -> list[Command]:
        """Its commands; the lines of a block without output are one."""
        return commands(f"```\n{self.text}```\n") if self.is_session else [Command(self.text.strip(), ELIDED)]


def blocks(page: str) -> list[Block]:
    """Return a page's blocks of commands, in order."""
    found = []
    is_marked_page = _MARKED_PAGE.match(page) is not None
    for mark, language, text in _BLOCK.findall(page):
        is_session = re.search(r"^\$ ", text, re.MULTILINE) is not None
        if is_session or language in _SHELLS:
            found.append(Block(text, is_session, is_run=not (mark or is_marked_page)))
    return found


class Terminal:
    """Runs the commands of pages as a reader would who types all of them into one shell.

    A working directory that is entered and variables that are exported stay for the next command.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = (), folder: Path = _ROOT
    ) -> None:
        """Begin in `folder`. Programs installed here are on the PATH, unless `environment` has another one.

        `prefix`: what to put before each command, such as a network namespace's; it may be changed.
        """
        path = f"{_ROOT / '.venv' / 'bin'}:{path_with_tools()}"
        self._environment = {**os.environ, "PATH": path, **(environment or {})}
        self.prefix = prefix
        self._folder = folder
        self._left = ""

    def play(self, page: str) -> list[tuple[Command, str]]:
        """Run a page's blocks in order, but those that are marked; return each command and what it has printed.

        Each must end as the page shows it, with a failure or without, and print the page's words in capitals.
        """
        played = []
        for command in [command for block in blocks(page) if block.is_run for command in block.commands]:
            code, output = self.run(command.line)
            assert (code != 0) == _fails(command.output), f"$ {command.line}\nexit code {code}\n{output}"
            missing = set(_WORD.findall(command.output)) - set(_WORD.findall(output))
            assert not missing, f"$ {command.line}\n{output}"
            played.append((command, output))
        return played

    def run(self, line: str) -> tuple[int, str]:
        """Return a command's exit code and what it prints."""
        with NamedTemporaryFile("r", encoding="utf-8") as left:
            leave = f'trap \'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {left.name}\' EXIT'
            done = subprocess.run(
                [*self.prefix, "bash", "-ec", f"{self._left}\n{leave}\n{line}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
            self._left = left.read()
        return done.returncode, done.stdout


def _fails(shown: str) -> bool:
    """Whether a command ends with a failure, as a page shows it: with an error, or because a key isn't there."""
    return re.search(r"^error: |^found +no$", shown, re.MULTILINE) is not None
