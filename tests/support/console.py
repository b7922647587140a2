"""Console sessions in Markdown: the commands after `$`, and their old output compared with the output now."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.tools import path_with_tools, tool

_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELIDED = "..."


@dataclass(frozen=True)
class Command:
    """A command and what the page shows of its output; an output of `...` is not shown."""

    line: str
    output: str

    @property
    def is_shown(self) -> bool:
        """Whether the page shows its output."""
        return self.output != ELIDED


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

    If a field's values do differ, only the type counts, and that an error has a message.
    """

    words: list[str]
    documents: list[Any]


def shape(output: str, volatile: frozenset[str]) -> Shape:
    """Return the shape of an output; `volatile` fields have other values each time, and copies any order."""
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
        ordered = value | {"replicas": _by_partition(value["replicas"])} if "replicas" in value else value
        return {name: _kind(item) if name in volatile else _stable(item, volatile) for name, item in ordered.items()}
    return [_stable(item, volatile) for item in value] if isinstance(value, list) else value


def _by_partition(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a page's replicas by partition; they come node by node, and which node has which differs."""
    return sorted(replicas, key=lambda replica: replica.get("partition", -1))


def _kind(value: Any) -> str:
    """Return the type of a value; a number that 64 bits may need is a string in JSON."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return "64-bit number"
    return "number" if isinstance(value, int | float) else type(value).__name__


class Shell:
    """Runs a page's commands: its ports become the fleet's, and variables that it sets stay."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """`ports` says what becomes of the page's ports."""
        self._ports = ports
        tool("grpcurl")
        self._environment = {**os.environ, "PATH": path_with_tools()}

    def run(self, command: Command) -> str:
        """Return what a command prints, failures included."""
        line = re.sub(r"localhost:(\d+)", lambda found: f"localhost:{self._ports[found[1]]}", command.line)
        variable = re.match(r"([A-Z]+)=", line)
        if variable is not None:
            line += f'; printf %s "${variable[1]}"'
        done = subprocess.run(
            ["bash", "-c", line],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=False,
        )
        if variable is None:
            return done.stdout.strip()
        assert done.stdout, f"{command.line} gave nothing"
        self._environment[variable[1]] = done.stdout
        return ""


def play(page: str, shell: Shell, volatile: frozenset[str]) -> int:
    """Run a page's commands and compare what comes back with what stands there; return how many there were."""
    listed = commands(page)
    for command in listed:
        output = shell.run(command)
        if command.output == ELIDED:
            assert output.startswith("{"), f"{command.line}\n{output}"
        else:
            assert shape(output, volatile) == shape(command.output, volatile), f"{command.line}\n{output}"
    return len(listed)
