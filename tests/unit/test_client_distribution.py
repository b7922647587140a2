"""The distribution `statehouse-client`: the client and exactly what it imports, without anything else of ours."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import grimp
import pytest
from hatchling.builders.wheel import WheelBuilder

from hatch_build import client_files

_ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

# The command, where a package is not there.
_WITHOUT: Final = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
from statehouse.cli.__main__ import main
main()
"""


@pytest.mark.feature("client-distribution")
def test_its_files_are_the_client_and_what_it_imports() -> None:
    declared = {path for entry in client_files(_ROOT) for path in _files_in(_ROOT / entry)}
    needed = {path for module in _closure("statehouse.client") for path in _files_of(module)}
    needed.add(_ROOT / "statehouse" / "py.typed")
    assert declared == needed, "`exclude` of the wheel in pyproject.toml has to list what the client imports"


def test_both_have_one_version() -> None:
    built = WheelBuilder(str(_ROOT / "client")).metadata
    assert built.version == _PROJECT["version"]
    assert _PROJECT["dependencies"] == [f"statehouse-client=={_PROJECT['version']}"]


@pytest.mark.feature("client-distribution")
@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("statehouse.client", f"pip install --force-reinstall --no-deps statehouse-client=={_PROJECT['version']}"),
        ("typer", "pip install 'statehouse[service]'"),
    ],
)
def test_a_command_that_lacks_a_distribution_says_what_to_install(missing: str, remedy: str) -> None:
    command = [sys.executable, "-c", _WITHOUT.format(missing=missing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"statehouse: No module named {missing!r}: {remedy}\n"


def _closure(package: str) -> set[str]:
    """Return the modules of a package, those that they import, and the packages that these are in."""
    graph = grimp.build_graph("statehouse", cache_dir=None)
    found: set[str] = set()
    waiting = [package, *graph.find_descendants(package)]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += [*graph.find_modules_directly_imported_by(module), module.rpartition(".")[0] or package]
    return found


def _files_of(module: str) -> set[Path]:
    """Return a module's file, and its types if it is generated."""
    path = _ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return {each for each in (source, source.with_suffix(".pyi")) if each.exists()}


def _files_in(entry: Path) -> set[Path]:
    assert entry.exists(), entry
    return {path for path in entry.rglob("*") if path.is_file() and path.suffix != ".pyc"} or {entry}
