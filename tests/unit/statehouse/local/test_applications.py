"""Which application a name means: an installed one's, or a module's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from examples.leaderboard.local import APPLICATION
from statehouse.errors import ConfigurationError
from statehouse.local.application_file import ApplicationFile
from statehouse.local.applications import GROUP, LocalApplication, NoApplication, find_application

TOPOLOGY = 'application_id = "{}"\ndef build(app): pass\n'
EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write modules into the working directory; what was imported of them is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


Write = Callable[[str, str], None]


def test_an_installed_one_by_its_name():
    assert find_application("leaderboard") is APPLICATION
    tally = LocalApplication("tally", "program-tally", "examples.tally.topology", "examples.tally.sample")
    assert find_application("tally") == tally
    word_sketch = LocalApplication("word_sketch", "word-sketch", "word_sketch.topology", "word_sketch.sample")
    assert find_application("word_sketch") == word_sketch


@pytest.mark.feature("application-runs-local")
def test_every_example_is_installed_and_has_a_sample():
    """All folders but the one of a consumer, which reads another example's topic."""
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists() or (path / "demo.py").exists()}
    installed = {entry_point.name for entry_point in entry_points(group=GROUP)}
    assert folders - {"effects_once"} == installed
    for name in installed:
        assert find_application(name).sample, name


@pytest.mark.feature("application-runs-local")
def test_a_module_is_imported_from_the_working_directory(write: Write):
    write("shop_a/topology.py", TOPOLOGY.format("shop"))
    application = LocalApplication("shop_a.topology", "shop", "shop_a.topology")
    assert find_application("shop_a.topology") == application
    write("shop_b/__init__.py", "")
    write("shop_b/topology.py", TOPOLOGY.format("shop"))
    write("shop_b/sample.py", "")
    assert find_application("shop_b").topology == "shop_b.topology"
    assert find_application("shop_b").sample == "shop_b.sample"


def test_a_module_in_no_package(write: Write):
    write("shop_flat.py", TOPOLOGY.format("shop"))
    assert find_application("shop_flat").topology == "shop_flat"


@pytest.mark.parametrize("name", ["nobody", "nobody.topology", "examples.nobody", "examples.tally.nothing"])
def test_a_name_of_nothing(name: str):
    with pytest.raises(NoApplication, match=rf"no application '{name}': .*leaderboard.*`statehouse new`"):
        find_application(name)


def test_what_was_meant_is_suggested():
    with pytest.raises(NoApplication, match="did you mean tally"):
        find_application("taly")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(app): pass", "must define application_id"),
        ('application_id = "shop"', "must define application_id"),
        (TOPOLOGY.format("a shop"), "can't be part of a topic name"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("def build(app:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_module_that_is_no_application_says_why(write: Write, text: str, said: str):
    write("broken_shop/topology.py", text)
    with pytest.raises(NoApplication, match=said):
        find_application("broken_shop.topology")


def test_the_file_of_a_folder_names_its_application(tmp_path: Path):
    assert ApplicationFile.of(tmp_path) is None
    (tmp_path / "statehouse.toml").write_text("commit_interval_ms = 500\n")
    assert ApplicationFile.of(tmp_path) is None
    (tmp_path / "statehouse.toml").write_text('commit_interval_ms = 500\n[up]\napp = "hello.topology"\n')
    assert ApplicationFile.of(tmp_path) == ApplicationFile(app="hello.topology")
    (tmp_path / "statehouse.toml").write_text('[up]\napp = "hello.topology"\nnodes = 2\n')
    assert ApplicationFile.of(tmp_path) == ApplicationFile(app="hello.topology", nodes=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[up", "can't be read"),
        ("[up]", "up.app: Field required"),
        ("up = 3", "up: Input should be a valid dictionary"),
        ("[up]\napp = 3", "up.app: Input should be a valid string"),
        ('[up]\napp = ""', "up.app: String should have at least 1 character"),
        ('[up]\napp = "x"\nnodes = 0', "up.nodes: Input should be greater than"),
        ('[up]\napp = "x"\nnodes = "2"', "up.nodes: Input should be a valid integer"),
        ('[up]\napp = "x"\nports = 2', "up.ports: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_file_says_which_key(tmp_path: Path, text: str, said: str):
    (tmp_path / "statehouse.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        ApplicationFile.of(tmp_path)
