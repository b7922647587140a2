"""Every flag that a message, a docstring or a page names is one that there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import flags_of_commands

ROOT = Path(__file__).parents[4]
PACKAGES = ("statehouse", "processor", "query_service", "router")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Flags of other programs, in the messages that name them.
FOREIGN = {
    "statehouse/cli/declared.py": {"--no-"},  # what switches begin with that turn something off
    "processor/topics/creation.py": {"--create", "--topic"},  # kafka-topics
    "statehouse/cli/send.py": {"--create", "--topic"},  # the same
    "statehouse/local/broker_config.py": {"--ignore-formatted", "--cluster-id", "--config"},  # kafka-storage
    "statehouse/local/kafka.py": {"--data-dir", "--port", "--heap-mb", "--config", "--ready-file"},  # its own
    "processor/spark/class_archive.py": {"--idle"},  # its own
    "processor/jvm/jar.py": {"--release"},  # of the Java compiler
    "statehouse/cli/sizes.py": {"--speed"},  # bench.sizing
    "statehouse/cli/__main__.py": {"--force-reinstall", "--no-deps"},  # pip's
    "statehouse/local/class_archives.py": {"--idle"},  # of the program that makes one
    "statehouse/local/cluster_parts.py": {"--data-dir", "--ready-file", "--port"},  # its parts'
}


def texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def modules() -> list[str]:
    found = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(str(path) for path in found if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")))


def test_flags_in_texts_exist() -> None:
    known = set().union(*flags_of_commands().values())
    named = {
        module: {flag for text in texts(ast.parse((ROOT / module).read_bytes())) for flag in _FLAG.findall(text)}
        for module in modules()
    }
    assert sum(map(len, named.values())) > 20, "they are found"
    unknown = {module: flags - known - FOREIGN.get(module, set()) for module, flags in named.items()}
    assert {module: flags for module, flags in unknown.items() if flags} == {}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_have_the_flags_they_are_shown_with(page: Path) -> None:
    commands = flags_of_commands()
    for line in re.findall(r"(?m)(?:^|`|\$ )statehouse ([^`\n|]*)", page.read_text()):
        words = line.split()
        name = max((each for each in commands if each.split() == words[: len(each.split())]), key=len)
        unknown = set(_FLAG.findall(line)) - commands[name]
        assert not unknown, f"statehouse {line}"
