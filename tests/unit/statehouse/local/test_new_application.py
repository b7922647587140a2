"""The folder of a new application: what can be its name, and what is in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from statehouse.errors import ConfigurationError
from statehouse.local.application_file import ApplicationFile
from statehouse.local.errors import LocalError
from statehouse.local.new_application import (
    FolderInUse,
    Template,
    checked_application_name,
    make_application,
    rendered_files,
)
from statehouse.settings import check_file


@pytest.mark.parametrize("name", ["hello", "page-views", "page_views2", "h"])
def test_names_that_an_application_can_have(name: str):
    assert checked_application_name(name) == name


@pytest.mark.feature("application-nothing-statehouse")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "small letters"),
        ("Hello", "small letters"),
        ("2hello", "small letters"),
        ("hello world", "small letters"),
        ("../hello", "small letters"),
        ("hello-", "small letters"),
        ("he--llo", "small letters"),
        ("héllo", "small letters"),
        ("h" * 61, "at most 60"),
        ("class", "Python itself has class"),
        ("json", "Python itself has json"),
        ("tests", "package tests already"),
        ("statehouse", "package statehouse already"),
        ("query-service", "package query_service already"),
        ("pyspark", "package pyspark already"),
    ],
)
def test_names_that_it_can_not_have(tmp_path: Path, name: str, said: str):
    with pytest.raises(ConfigurationError, match=said):
        make_application(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.feature("application-nothing-statehouse")
def test_a_folder_that_has_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "hello").mkdir()
    make_application(tmp_path, "hello")  # an empty one is filled
    (tmp_path / "hello" / "hello" / "topology.py").write_text("mine")
    with pytest.raises(FolderInUse, match="not an empty folder"):
        make_application(tmp_path, "hello")
    assert (tmp_path / "hello" / "hello" / "topology.py").read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(FolderInUse):
        make_application(tmp_path, "file")


def test_a_folder_that_can_not_be_made_says_so(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="can't be written"):
        make_application(tmp_path / "file", "hello")


@pytest.mark.feature("application-templates")
@pytest.mark.parametrize("template", Template)
def test_what_is_in_it(tmp_path: Path, template: Template):
    folder, paths = make_application(tmp_path, "page-views2", template)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(paths)
    assert paths[0] == "page_views2/__init__.py"
    for path in folder.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
    assert 'application_id = "page-views2"' in (folder / "page_views2" / "topology.py").read_text()
    assert ApplicationFile.of(folder) == ApplicationFile(app="page_views2.topology", nodes=2)
    assert check_file(folder / "statehouse.toml") == []
    assert "$" not in "".join(rendered_files("hello", template).values())


def test_each_kind_has_its_own_topology_sample_and_tests():
    of_kinds = [rendered_files("hello", template) for template in Template]
    own = {path for path in of_kinds[0] if len({files[path] for files in of_kinds}) == len(Template)}
    assert own == {"README.md", "hello/sample.py", "hello/topology.py", "tests/test_topology.py"}
    shared = {path for path in of_kinds[0] if len({files[path] for files in of_kinds}) == 1}
    assert own | shared == set(of_kinds[0])


def test_the_page_shows_its_topology():
    page = (Path(__file__).parents[4] / "docs" / "own-application.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert statements(shown) == statements(rendered_files("hello", Template.COUNTER)["hello/topology.py"])


def statements(program: str) -> str:
    """Return a program without its comments, its docstrings, and the import that only readers of the file need."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    return ast.unparse(tree)


@pytest.mark.parametrize("template", Template)
def test_its_code_is_formatted_and_without_a_finding(tmp_path: Path, template: Template):
    folder, _ = make_application(tmp_path, "hello", template)
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["format", "--check"], ["check", "--select", "E,F,W,I,B,C4,D1,N,PT,PTH,RET,SIM,UP"]):
        options = ["--no-cache", "--isolated", "--line-length", "120", "--target-version", "py311", "--ignore", "D103"]
        if arguments[0] == "format":
            options = options[:-2]
        done = subprocess.run(
            [ruff, *arguments, *options, "."], cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
