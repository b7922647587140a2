"""Console sessions in Markdown: what is typed after `$`, and what came back, compared with what comes back now."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELIDED = "..."


@dataclass(frozen=True)
class Command:
    """A command and what the page shows of its output; an output of `...` is not shown."""

    line: str
    output: str


def commands(page: str) -> list[Command]:
    """Return the commands of a page's fenced blocks, in order."""
    found = []
    for block in _BLOCK.findall(page):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", session)
            assert command is not None, session
            found.append(Command(command[0].strip(), session[command.end() :].strip()))
    return found


@dataclass(frozen=True)
class Shape:
    """What of an output doesn't differ from run to run: its words, and the JSON documents among them.

    Of fields whose values do differ only the type counts, and that an error has a message.
    """

    words: list[str]
    documents: list[Any]


def shape(output: str, volatile: frozenset[str]) -> Shape:
    """Return the shape of an output; `volatile` fields have other values each time."""
    words: list[str] = []
    documents = []
    rest = re.sub(r"^( *Message:).*$", r"\1", output, flags=re.MULTILINE)
    while (start := re.search(r"[{\[]", rest)) is not None:
        try:
            document, length = json.JSONDecoder().raw_decode(rest[start.start() :])
        except ValueError:  # a brace that begins no JSON
            words += rest[: start.end()].split()
            rest = rest[start.end() :]
            continue
        words += rest[: start.start()].split()
        documents.append(_stable(document, volatile))
        rest = rest[start.start() + length :]
    return Shape(words + rest.split(), documents)


def _stable(value: Any, volatile: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _kind(item) if name in volatile else _stable(item, volatile) for name, item in value.items()}
    return [_stable(item, volatile) for item in value] if isinstance(value, list) else value


def _kind(value: Any) -> str:
    """Return the type of a value; a number that 64 bits may need is a string in JSON."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return "64-bit number"
    return "number" if isinstance(value, int | float) else type(value).__name__
