"""Mutants: changes to the code of the deciding modules, drawn with a seed (see tools/mutate.py)."""

from __future__ import annotations

import ast
import difflib
import random
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec, WorkItem

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "decisions are pure"


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a module's code, and the changes that can be made there: operators, and which occurrence of each."""

    module: str
    start: tuple[int, int]
    end: tuple[int, int]
    changes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place."""

    place: Place
    operator: str
    occurrence: int

    def code(self, source: str) -> str:
        """Return the module's code with the change."""
        return mutated(source, self.operator, self.occurrence)

    @property
    def job_id(self) -> str:
        """Return a name that is the same in every run."""
        return f"{self.place.module}:{self.place.start[0]}:{self.place.start[1]}:{self.operator}:{self.occurrence}"

    def to_work_item(self) -> WorkItem:
        """Return it in the form that Cosmic Ray's session keeps."""
        spec = MutationSpec(
            module_path=path_of(self.place.module),
            operator_name=self.operator,
            occurrence=self.occurrence,
            start_pos=self.place.start,
            end_pos=self.place.end,
        )
        return WorkItem.single(job_id=self.job_id, mutation=spec)


def deciding_modules(root: Path = ROOT) -> list[str]:
    """Return the modules of the purity contract; a package stands for all that is in it."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (each for each in contracts if each["name"] == CONTRACT)
    found: set[str] = set()
    for name in contract["source_modules"]:
        path = root / name.replace(".", "/")
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        found |= {".".join(file.relative_to(root).with_suffix("").parts) for file in files}
    return sorted(name.removesuffix(".__init__") for name in found)


def path_of(module: str, root: Path = ROOT) -> Path:
    """Return a module's file."""
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def places(module: str, source: str) -> list[Place]:
    """Return where a module's code can be changed, in the order of the code."""
    found: dict[tuple[tuple[int, int], tuple[int, int]], list[tuple[str, int]]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        operator_class = get_operator(name)
        if operator_class.arguments():
            continue  # it must be told which variables to exchange
        operator = operator_class()
        positions = (span for node in nodes for span in operator.mutation_positions(node))
        for occurrence, span in enumerate(positions):
            found[span].append((name, occurrence))
    return [Place(module, start, end, tuple(changes)) for (start, end), changes in sorted(found.items())]


def mutated(source: str, operator: str, occurrence: int) -> str:
    """Return the code with one change."""
    code = mutate_code(source, get_operator(operator)(), occurrence)
    if code is None:
        raise ValueError(f"{operator} has no occurrence {occurrence}")
    return str(code)


def is_change(source: str, code: str) -> bool:
    """Whether a mutant compiles, and differs from the original outside of annotations."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(code, "mutant", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return _evaluated(code) != _evaluated(source)


class _Annotations(ast.NodeTransformer):
    """Removes annotations."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(value=None)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


def _evaluated(code: str) -> str:
    return ast.dump(_Annotations().visit(ast.parse(code)))


def draw(sources: Mapping[str, str], seed: int, count: int) -> list[Mutant]:
    """Draw mutants: each place is as likely as any other, and so is each change at a place."""
    rng = random.Random(seed)
    waiting = [place for module, source in sorted(sources.items()) for place in places(module, source)]
    rng.shuffle(waiting)
    drawn: list[Mutant] = []
    for place in waiting:
        if len(drawn) == count:
            break
        source = sources[place.module]
        mutants = (Mutant(place, *change) for change in rng.sample(place.changes, len(place.changes)))
        drawn += islice((each for each in mutants if is_change(source, each.code(source))), 1)
    return drawn


def diff_of(mutant: Mutant, source: str) -> str:
    """Return the lines that a mutant changes."""
    name = str(path_of(mutant.place.module).relative_to(ROOT))
    lines = difflib.unified_diff(source.splitlines(), mutant.code(source).splitlines(), name, name, lineterm="", n=0)
    return "\n".join(lines)
