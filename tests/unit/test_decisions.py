"""Each decision is made in one place: a second one is found by the names that only the deciding file needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("statehouse", "processor", "query_service", "router", "pyspark_statehouse")
_ORDER: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that is made in `file`; `decides` tells of a piece of code whether it would make it.

    Attributes:
        named: what the architecture page calls it.
        others: files in which such code decides something else, with what it is.
        planted: code of a second place, which must be found.

    """

    named: str
    file: str
    decides: Callable[[ast.AST], bool]
    planted: str
    others: tuple[str, ...] = ()


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name):
            yield each.id


def compares(*names: str) -> Callable[[ast.AST], bool]:
    """Return whether code compares one of these by size."""

    def found(node: ast.AST) -> bool:
        is_order = isinstance(node, ast.Compare) and any(isinstance(each, _ORDER) for each in node.ops)
        return is_order and not set(names).isdisjoint(_names(node))

    return found


def holds_against(*pairs: tuple[str, str]) -> Callable[[ast.AST], bool]:
    """Return whether code compares a figure with its bound by size, or gives both to a function."""

    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare) and any(isinstance(each, _ORDER) for each in node.ops):
            names = set(_names(node))
        elif isinstance(node, ast.Call):
            names = {each.attr for each in node.args if isinstance(each, ast.Attribute)}
        else:
            return False
        return any(names.issuperset(pair) for pair in pairs)

    return found


def makes(*names: str) -> Callable[[ast.AST], bool]:
    """Return whether code calls one of these, or names a member of one."""

    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in names
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names

    return found


def writes(*texts: str) -> Callable[[ast.AST], bool]:
    """Return whether code has one of these as the key of a dictionary."""

    def found(node: ast.AST) -> bool:
        return isinstance(node, ast.Dict) and any(
            isinstance(key, ast.Constant) and key.value in texts for key in node.keys
        )

    return found


def sets(name: str) -> Callable[[ast.AST], bool]:
    """Return whether code assigns to an attribute of this name of something that isn't `self`."""

    def found(node: ast.AST) -> bool:
        return isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Attribute) and each.attr == name and ast.unparse(each.value) != "self"
            for each in node.targets
        )

    return found


DECISIONS: Final = (
    Decision(
        "express way or not",
        "router/choice/express.py",
        makes("ObstacleKind"),
        "obstacle = Obstacle(ObstacleKind.TURNS, 'two copies')",
        ("router/lookups/explain.py",),  # adds what it alone knows to the rule's word
    ),
    Decision(
        "keep or wipe a store",
        "query_service/states/keep_or_wipe.py",
        makes("RestoreStart"),
        "start = RestoreStart(None, Fault.NO_STATE, 'too old')",
    ),
    Decision(
        "restore from files or the log",
        "query_service/states/sources.py",
        compares("files_s", "log_s"),
        "if rates.files_s(size) < rates.log_s(records): fetch()",
    ),
    Decision(
        "a changelog's settings",
        "processor/topics/settings.py",
        writes("min.compaction.lag.ms", "segment.ms"),
        "config = {'cleanup.policy': 'compact', 'segment.ms': '1'}",
        ("statehouse/kafka/topics.py",),  # the control topics'
    ),
    Decision(
        "a partition's colour",
        "statehouse/web/pages/partitions.py",
        makes("Condition"),
        "condition = Condition.THIN",
        (
            "statehouse/web/pages/recorder.py",  # remembers a condition
            "statehouse/web/pages/views/map.py",  # of the past, where less is known
            "statehouse/web/pages/views/attention.py",  # reads them from the past
            "statehouse/web/pages/views/overview.py",  # counts them
        ),
    ),
    Decision(
        "a batch's limit",
        "processor/run/batch_limit.py",
        lambda node: isinstance(node, ast.BinOp) and "max_batch_ms" in set(_names(node)),
        "limit = rate * settings.max_batch_ms / 1000",
    ),
    Decision(
        "who may drain",
        "statehouse/security/draining.py",
        lambda node: isinstance(node, ast.BoolOp) and "drain_from_anywhere" in set(_names(node)),
        "may = settings.drain_from_anywhere or is_loopback(address)",
    ),
    Decision(
        "when a node is dead",
        "processor/ownership/machine/sessions.py",
        compares("session_timeout_s", "_session_timeout_s"),
        "if now - heard_at > settings.session_timeout_s: nodes.remove(node)",
        (
            "processor/ownership/acting.py",  # whether the controller itself is in touch with Kafka
            "query_service/states/ownership.py",  # whether a node may still claim what it has
            "router/fleet/tracker.py",  # how long a router waits for members at its start
        ),
    ),
    Decision(
        "the next active",
        "processor/ownership/planning/actives.py",
        sets("active"),
        "slot.active = nodes[0]",
    ),
    Decision(
        "what is fresh enough",
        "statehouse/contract/consistency.py",
        holds_against(("lag", "max_lag"), ("staleness_ms", "max_staleness_ms"), ("input_backlog", "max_input_backlog")),
        "if replica.lag > bound.max_lag: refuse()",
    ),
    Decision(
        "when it is gone early",
        "processor/ownership/machine/refusals.py",
        compares("REFUSALS_MIN", "SPAN_S"),
        "if refusals >= REFUSALS_MIN: node.is_gone = True",
    ),
    Decision(
        "which batch a read is of",
        "statehouse/contract/committed_moments.py",
        makes("Chosen"),
        "found = Chosen(query_id, batch_id, end)",
    ),
)
_NOT_COVERED: Final = {"overload", "what staleness counts from", "a hedge's delay"}


def deciding(decision: Decision, tree: ast.AST) -> bool:
    return any(decision.decides(node) for node in ast.walk(tree))


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.named)
def test_no_second_place_decides(decision: Decision) -> None:
    files = [path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    places = {str(path.relative_to(_ROOT)) for path in files if deciding(decision, ast.parse(path.read_text()))}
    assert places == {decision.file, *decision.others}


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.named)
def test_a_second_place_would_be_found(decision: Decision) -> None:
    assert deciding(decision, ast.parse(decision.planted))


def test_the_architecture_page_lists_each_decision_with_its_file() -> None:
    page = (_ROOT / "docs" / "architecture.md").read_text().partition("### Decisions")[2].partition("\n###")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    listed = {row[0].partition(":")[0]: row for row in rows[1:]}
    assert listed.keys() == {decision.named for decision in DECISIONS} | _NOT_COVERED
    for decision in DECISIONS:
        assert f"`{decision.file}`" in listed[decision.named][2]
    for _, functions, files in listed.values():
        code = "\n".join((_ROOT / file).read_text() for file in re.findall(r"`([\w/]+\.py)`", files))
        for function in re.findall(r"`([\w.]+)`", functions):
            assert re.search(rf"^\s*(def|class) {function.rpartition('.')[2]}\b", code, re.MULTILINE), function
    for named in _NOT_COVERED:
        assert named in page.partition("It can't find")[2]
