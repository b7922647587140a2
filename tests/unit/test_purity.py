"""The deciding modules: which they are, and that what they hand out doesn't change behind anybody's back."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CLAIM: Final = re.compile(r"\b(?:no I/O|without I/O|sans-I/O|pure)\b", re.IGNORECASE)
_PACKAGES: Final = ("statehouse", "processor", "query_service", "router", "pyspark_statehouse")
# What a decision is worked out with, or remembered in, and what belongs to one lookup.
_CHANGING: Final = {
    "_Penalty",
    "_Windows",
    "_Restore",
    "AttemptLog",
    "AttemptRecord",
    "Differences",
    "KeyRangeCount",
    "NodeTask",
    "MemberSession",
    "KnownMoments",
    "StoreSums",
    "SeenMoments",
    "PinnedMoment",
    "Slot",
    "Pace",
}
# Spark sends them to its workers, and one of them extends another.
_WITHOUT_SLOTS: Final = {
    "AggregateProgram",
    "Count",
    "GroupsProgram",
    "JoinProgram",
    "RecordPositions",
    "Reduce",
    "Replacing",
    "RowMatches",
    "SubscriptionJoinProgram",
    "SubscriptionProgram",
    "TableChangesProgram",
    "TopN",
    "_Rows",
}


def deciding_modules() -> list[str]:
    """Return the modules of the purity contract; a package stands for all that is in it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (each for each in contracts if each["name"] == "decisions are pure")
    found: set[str] = set()
    for name in contract["source_modules"]:
        path = ROOT / name.replace(".", "/")
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        found |= {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    return sorted(name.removesuffix(".__init__") for name in found)


def path_of(module: str) -> Path:
    """Return a module's file."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in path.name:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                yield name, ast.parse(path.read_text())


def dataclasses(path: Path) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield each dataclass with what its decorator says."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            for each in node.decorator_list:
                call = each if isinstance(each, ast.Call) else ast.Call(each, [], [])
                if isinstance(call.func, ast.Name) and call.func.id == "dataclass":
                    yield node.name, {str(given.arg): ast.literal_eval(given.value) for given in call.keywords}


def test_a_module_that_says_it_is_pure_is_held_to_it() -> None:
    claim = {name for name, tree in sources() if _CLAIM.search(ast.get_docstring(tree) or "")}
    assert len(claim) > 10
    assert claim - set(deciding_modules()) == set()


def test_values_of_deciding_modules_do_not_change_and_are_small() -> None:
    found = [(path_of(module), *each) for module in deciding_modules() for each in dataclasses(path_of(module))]
    assert len(found) > 50
    for path, name, options in found:
        where = f"{name} in {path}"
        assert options.get("frozen", False) is (name not in _CHANGING), where
        assert options.get("slots", False) is (name not in _WITHOUT_SLOTS), where
