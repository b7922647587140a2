"""Write `docs/command-line.md` from the commands themselves; `--check` fails when the page is out of date."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import typer

from statehouse.cli.main import app
from statehouse.settings import PROCESSES
from tools.generate_settings_doc import NAMES
from tools.generated_page import write_or_check

HEAD: Final = """# Command line

<!-- Written by tools/generate_commands_doc.py from statehouse/cli/ and the commands of packages;
run `make docs` after a change there. -->

`statehouse COMMAND --help` says the same in a terminal. Results go to stdout, progress and errors to stderr; `NO_COLOR`
is heeded. [Exit codes](errors.md#exit-codes-of-the-command-line) say how a command has ended.
`statehouse --install-completion` installs completion for your shell, `statehouse --version` prints the version.

An option with a variable (`env var`) may be set by that variable instead.

## Shared options

Many commands take these. Each command says which.

"""
# An option that so many commands have, with the same meaning, is described once.
SHARED_BY: Final = 4
_VALUES: Final = {"<str>": "TEXT", "<path>": "PATH", "<int range>": "N"}
_TABLE: Final = "| option | meaning |\n|---|---|\n"


@dataclass(frozen=True)
class Row:
    """A parameter as the page shows it."""

    name: str
    meaning: str
    flag: str


@dataclass(frozen=True)
class Command:
    """A command, its words after `statehouse`, and the context that typer made for it."""

    words: tuple[str, ...]
    context: Any

    @property
    def title(self) -> str:
        """What is typed."""
        return " ".join(("statehouse", *self.words))

    @property
    def help(self) -> str:
        """What it says of itself."""
        return str(self.context.command.help)

    @property
    def process(self) -> str:
        """The process whose settings are among its options, if any are."""
        return self.words[-1] if self.words[-1] in PROCESSES else "process"

    @cached_property
    def settings(self) -> dict[str, str]:
        """The flags of that process's settings, and their meanings."""
        return {setting.flag: setting.meaning for setting in PROCESSES[self.process].declared().values()}

    def rows(self, kind: str) -> list[Row]:
        """Return its parameters of a kind, `argument` or `option`, in order, without `--help`."""
        found = []
        for parameter in self.context.command.get_params(self.context):
            if parameter.param_type_name == kind and not parameter.hidden and "--help" not in parameter.opts:
                name, meaning = parameter.get_help_record(self.context)
                if kind == "argument":
                    name = parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]"
                found.append(Row(name, meaning.replace("\\[", "["), max(parameter.opts, key=len)))
        return found

    def is_setting(self, row: Row) -> bool:
        """Whether an option is a setting, and not one of a caller that has the same name."""
        return row.flag in self.settings and row.meaning.startswith(self.settings[row.flag])


def commands() -> Iterator[Command]:
    """Yield every command that isn't a group, in the order of the help."""
    root: Any = typer.main.get_command(app)
    yield from _below((), root, root.make_context("statehouse", ["--help"], resilient_parsing=True))


def _below(words: tuple[str, ...], command: Any, context: Any) -> Iterator[Command]:  # noqa: ANN401 - as in statehouse.cli.plugins
    if not hasattr(command, "commands"):
        yield Command(words, context)
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        made = child.make_context(name, ["--help"], parent=context, resilient_parsing=True)
        yield from _below((*words, name), made.command, made)


def text() -> str:
    """Return the whole page."""
    # Help is worded for a terminal of this width, whatever this one's.
    os.environ["COLUMNS"] = "200"
    listed = list(commands())
    counts = Counter(row for each in listed for row in each.rows("option") if not each.is_setting(row))
    shared = [row for row, count in counts.items() if count >= SHARED_BY]
    index = [f"- [`{each.title}`](#{each.title.replace(' ', '-')}): {_first_line(each.help)}\n" for each in listed]
    return "".join([HEAD, _table(shared), "\n## Commands\n\n", *index, *(_section(each, shared) for each in listed)])


def _section(command: Command, shared: list[Row]) -> str:
    arguments, options = command.rows("argument"), command.rows("option")
    settings = [row for row in options if command.is_setting(row)]
    own = [*arguments, *(row for row in options if row not in shared and row not in settings)]
    usage = " ".join((command.title, *(row.name for row in arguments), "[OPTIONS]"))
    parts = [f"## {command.title}", f"`{usage}`", _prose(command.help)]
    if own:
        parts.append(_table(own).rstrip())
    if settings:
        name = NAMES[command.process]
        parts.append(
            f"Settings of a [{name}](settings.md#{name.replace(' ', '-')}) that are options: {_flags(settings)}."
        )
    if common := [row for row in options if row in shared]:
        parts.append(f"[Shared options](#shared-options): {_flags(common)}.")
    return "\n" + "\n\n".join(parts) + "\n"


def _flags(rows: list[Row]) -> str:
    return ", ".join(f"`{row.flag}`" for row in rows)


def _table(rows: list[Row]) -> str:
    return _TABLE + "".join(f"| `{_cell(_with_value(row.name))}` | {_cell(row.meaning)} |\n" for row in rows)


def _cell(said: str) -> str:
    return " ".join(said.replace("|", "\\|").split()).replace("] [", "; ")


def _with_value(name: str) -> str:
    """Return an option with its value as other options have theirs."""
    return re.sub("|".join(_VALUES), lambda found: _VALUES[found[0]], name)


def _first_line(said: str) -> str:
    return said.partition("\n")[0]


def _prose(said: str) -> str:
    """Return a command's help as Markdown: paragraphs in one line each, and its example as code."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", said.strip()))
    return "\n\n".join(re.sub(r"^(Examples?): (.*)$", r"\1: `\2`", paragraph) for paragraph in paragraphs)


if __name__ == "__main__":
    write_or_check(__doc__, "docs/command-line.md", text, "the commands")
