"""The applications on the pages run. The README's is as short as it looks, and is the example that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from processor.testing import Record, TopologyTest

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[3]


def programs(page: str) -> list[str]:
    """Return a page's programs in Python."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


(IN_README,) = programs("README.md")
PAGES = ("docs/applications.md", "docs/stores.md", "docs/spark-state.md", "docs/windows.md")
APPLICATIONS = [(page, program) for page in PAGES for program in programs(page)]
APPLICATIONS = [(page, program) for page, program in APPLICATIONS if "\ndef build(" in program]


def run(program: str) -> dict[str, Any]:
    """Return what a program defines."""
    defined: dict[str, Any] = {}
    exec(program, defined)  # noqa: S102 - our own pages
    return defined


def without_docstrings(program: str) -> str:
    """Return a program's statements; comments and docstrings are for people that read the file alone."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


@pytest.mark.feature("counts-sums-extremes")
def test_the_readme_s_application_counts_views_by_page(spark: SparkSession, tmp_path: Path):
    program = run(IN_README)
    topology = TopologyTest(program["application_id"], program["build"], spark, tmp_path)

    topology.pipe("views", Record(None, "home"), Record(None, "cart"), Record(None, "home"))
    assert topology.run().store("views-per-page") == {"home": 2, "cart": 1}
    topology.pipe("views", Record(None, "home"))
    assert topology.run().store("views-per-page") == {"home": 3, "cart": 1}
    assert topology.dead_letters == []


def test_the_readme_s_application_has_twelve_lines():
    assert len(IN_README.splitlines()) == 12


def test_the_readme_s_application_is_the_example():
    example = (ROOT / "examples" / "page_views" / "topology.py").read_text(encoding="utf-8")
    assert without_docstrings(IN_README) == without_docstrings(example)


def test_the_pages_have_applications():
    assert {page for page, _ in APPLICATIONS} == set(PAGES)
    assert len(APPLICATIONS) >= 4


@pytest.mark.parametrize(("page", "program"), APPLICATIONS)
def test_applications_can_be_built(page: str, program: str, spark: SparkSession, tmp_path: Path):
    defined = run(program)
    TopologyTest(defined["application_id"], defined["build"], spark, tmp_path)


@pytest.mark.feature("tests-application-without")
def test_the_test_on_the_page_passes(spark: SparkSession, tmp_path: Path):
    first, *_ = programs("docs/applications.md")
    (shown,) = (program for program in programs("docs/applications.md") if "\ndef test_" in program)
    defined = run(f"{first}\n{shown}")
    (test,) = (value for name, value in defined.items() if name.startswith("test_"))
    test(spark, tmp_path)


@pytest.mark.feature("where-spark-state")
def test_the_total_on_the_page_forgets_who_has_logged_out(spark: SparkSession, tmp_path: Path):
    (program,) = (run(shown) for shown in programs("docs/spark-state.md"))
    topology = TopologyTest(program["application_id"], program["build"], spark, tmp_path)

    topology.pipe(
        "events", Record("ann", '{"kind": "pay", "amount": 3}'), Record("bob", '{"kind": "pay", "amount": 5}')
    )
    assert topology.run().store("totals") == {"ann": 3, "bob": 5}
    topology.pipe("events", Record("ann", '{"kind": "pay", "amount": 4}'), Record("bob", '{"kind": "logout"}'))
    assert topology.run().store("totals") == {"ann": 7}
    state = tmp_path / "checkpoints" / "totals" / "state"
    assert {file.suffix for file in state.rglob("*.*")} >= {".changelog"}, sorted(state.rglob("*"))
