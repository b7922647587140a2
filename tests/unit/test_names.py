"""A word has one meaning: no class name stands twice, and each word of our own is in docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("statehouse", "processor", "query_service", "router", "pyspark_statehouse")
_GENERATED: Final = ("statehouse/v1", "statehouse/control")
_FIELD_TERMS: Final = Path(__file__).with_name("field_terms.txt")
_GLOSSARY: Final = _ROOT / "docs" / "glossary.md"
_TYPE_NAME: Final = re.compile(r"[A-Z]\w*[a-z]")
# "RocksDBEngine" -> Rocks, DB, Engine.
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Entry(NamedTuple):
    term: str
    meaning: str
    places: list[str]


@cache
def sources() -> dict[Path, ast.Module]:
    """Return the modules of the project, generated ones apart, by their paths below its root."""
    paths = [path.relative_to(_ROOT) for package in _PACKAGES for path in sorted((_ROOT / package).rglob("*.py"))]
    return {path: ast.parse((_ROOT / path).read_text()) for path in paths if not str(path).startswith(_GENERATED)}


def classes() -> Iterator[tuple[str, Path]]:
    """Yield the name and the module of each class."""
    for path, tree in sources().items():
        yield from ((node.name, path) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def singular(word: str) -> str:
    """Return a word without the ending of its plural; equal for both forms, and not always English."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("shes", "sh"), ("ches", "ch")):
        if word.endswith(ending) and len(word) > 4:
            return word.removesuffix(ending) + instead
    return word if len(word) <= 3 or word.endswith(("ss", "us", "is")) else word.removesuffix("s")


def words_of(name: str) -> set[str]:
    """Return the words of a name, in lower case and singular."""
    return {singular(word.lower()) for word in _WORD.findall(name)}


@cache
def named_words() -> dict[str, set[str]]:
    """Return the words that classes, modules and folders are named by, with the names they are in."""
    found = defaultdict(set)
    for name, _ in classes():
        for word in words_of(name):
            found[word].add(name)
    for path in sources():
        for part in path.with_suffix("").parts:
            for word in set() if part.startswith("__") else words_of(part):
                found[word].add(part)
    return found


@cache
def identifiers() -> set[str]:
    """Return the words of all identifiers of the code."""
    names = set()
    for tree in sources().values():
        for node in ast.walk(tree):
            names |= {
                name for field in ("id", "attr", "arg", "name") if isinstance(name := getattr(node, field, None), str)
            }
    return {word for name in names for word in words_of(name)}


@cache
def addresses() -> set[str]:
    """Return the dotted names of all modules and of the classes in them; a folder's is that of its `__init__`."""
    found = set()
    for path, tree in sources().items():
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        found |= {module, *(f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef))}
    return found


def glossary() -> list[Entry]:
    """Return the rows of the glossary's tables."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in _GLOSSARY.read_text().splitlines()
        if line.startswith("|")
    ]
    return [
        Entry(term, meaning, re.findall(r"`([^`]+)`", where))
        for term, meaning, where in rows
        if term != "term" and not term.startswith("-")
    ]


def field_terms() -> list[str]:
    """Return the words that mean here what they mean everywhere."""
    lines = [line for line in _FIELD_TERMS.read_text().splitlines() if not line.startswith("#")]
    return " ".join(lines).split()


def aliases() -> Iterator[tuple[str, Path]]:
    """Yield the name and the module of each type that is given a name, such as `Outcome = bytes | Failure`."""
    for path, tree in sources().items():
        for node in tree.body:
            match node:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=value):
                    if _TYPE_NAME.match(name) and not ast.unparse(value or node).startswith("TypeVar("):
                        yield name, path


def test_no_public_name_of_a_type_stands_twice():
    places = defaultdict(list)
    for name, path in (*classes(), *aliases()):
        if not name.startswith("_"):
            places[name].append(str(path))
    assert len(places) > 300
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_word_in_a_name_is_plain_or_explained():
    known = {singular(word) for word in field_terms()} | {word for entry in glossary() for word in words_of(entry.term)}
    unknown = {word: sorted(names) for word, names in named_words().items() if word not in known}
    assert unknown == {}, "take a word of the field, or explain yours in docs/glossary.md"


def test_a_word_is_explained_once():
    explained = Counter(entry.term for entry in glossary())
    assert len(explained) > 50
    assert [term for term, times in explained.items() if times > 1] == []
    plain = Counter(map(singular, field_terms()))
    assert [word for word, times in plain.items() if times > 1] == []
    assert sorted(plain.keys() & {singular(term) for term in explained}) == [], "plain, or with a meaning of its own"


def test_no_word_is_kept_that_nothing_is_named_by():
    unused = {singular(word) for word in field_terms()} - named_words().keys()
    assert unused == set()


@pytest.mark.parametrize("entry", glossary(), ids=lambda entry: entry.term)
def test_what_the_glossary_explains_is_in_the_code(entry: Entry):
    assert entry.meaning.endswith(".")
    assert words_of(entry.term) <= identifiers() | named_words().keys()
    assert entry.places
    for place in entry.places:
        assert place in addresses(), f"{place} is not there"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RocksDBEngine", {"rock", "db", "engine"}),
        ("_NodeQueue", {"node", "queue"}),
        ("open_scans", {"open", "scan"}),
        ("QueryStatus", {"query", "status"}),
        ("MemberSessions", {"member", "session"}),
        ("watches", {"watch"}),
        ("replicas", {"replica"}),
        ("HasTime", {"has", "time"}),
    ],
)
def test_names_are_taken_apart(name: str, expected: set[str]):
    assert words_of(name) == expected
