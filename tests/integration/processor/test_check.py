"""Planted mistakes: `statehouse check` names each that plans show; the others are named when they raise."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from processor.application.topology import Topology
from processor.run.check import checked
from processor.settings import ProcessorSettings
from processor.spark.failures import where_raised
from processor.spark.mistakes import TopologyError
from processor.testing import Record, TopologyTest
from statehouse.cli.exits import ExitCode
from tests.support.statehouse import statehouse

FOLDER: Final = Path(__file__).parent / "mistakes"
PACKAGE: Final = f"{__package__}.mistakes"
SETTINGS: Final = ProcessorSettings(bootstrap="unused:1", checkpoint_dir="unused")
STATIC: Final = sorted(path for path in FOLDER.glob("*.py") if path.stem not in {"__init__", "clicks"})
RUNNING: Final = sorted(path for path in (FOLDER / "running").glob("*.py") if path.stem != "__init__")
SOUND: Final = ("examples.leaderboard.topology", "examples.page_views.topology", "examples.window_join.topology")


def line_of_mistake(path: Path) -> int:
    (line,) = (number for number, text in enumerate(path.read_text().splitlines(), 1) if text.endswith("# mistake"))
    return line


def expected(path: Path) -> list[str]:
    """Return EXPECTED of a module, which may not be importable."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "EXPECTED":
            return list(ast.literal_eval(statement.value))
    raise AssertionError(f"{path} has no EXPECTED")


@pytest.fixture(scope="module")
def warm(spark: SparkSession) -> SparkSession:
    """Return the session, in which plans were analysed before."""
    for module in SOUND:
        checked(Topology.load(module), spark, SETTINGS)
    return spark


@pytest.mark.feature("check-names-mistakes")
def test_there_are_enough_mistakes():
    assert len(STATIC) >= 25


@pytest.mark.feature("check-names-mistakes")
@pytest.mark.timeout(5, func_only=True)
@pytest.mark.parametrize("path", STATIC, ids=lambda path: path.stem)
def test_a_mistake_is_named_with_its_line_and_what_to_do(warm: SparkSession, path: Path):
    with pytest.raises(TopologyError) as raised:
        checked(Topology.load(f"{PACKAGE}.{path.stem}"), warm, SETTINGS)
    (mistake,) = raised.value.mistakes
    assert mistake.where is not None
    assert (mistake.where.file, mistake.where.line) == (str(path), line_of_mistake(path)), mistake
    said = str(mistake)
    assert [part for part in expected(path) if part not in said] == [], said


@pytest.mark.feature("check-names-mistakes")
def test_the_command_says_it_alone_and_ends_with_its_exit_code(tmp_path: Path):
    ran = statehouse(tmp_path, "check", f"{PACKAGE}.typo_in_sql")
    assert (ran.code, ran.out) == (ExitCode.ERROR, "")
    assert re.fullmatch(
        r"error: \S+/typo_in_sql\.py:\d+: there is no column 'pge'\n .*\nnearest: .*\nhint: .*\n", ran.err
    )
    nameless = statehouse(tmp_path, "check")
    assert nameless.code == ExitCode.USAGE
    assert "name a topology's module" in nameless.err


@pytest.mark.feature("check-names-mistakes")
@pytest.mark.parametrize("path", RUNNING, ids=lambda path: path.stem)
def test_what_no_plan_shows_is_named_when_it_raises(warm: SparkSession, tmp_path: Path, path: Path):
    module = f"{PACKAGE}.running.{path.stem}"
    checked(Topology.load(module), warm, SETTINGS)
    topology = TopologyTest("mistakes", import_module(module).build, warm, tmp_path)
    values = [f'{{"user":"ann","page":"home","amount":{amount}}}' for amount in (1, 0)]
    topology.pipe("clicks", *(Record("ann", value, 1_000) for value in values))
    with pytest.raises(StreamingQueryException) as raised:
        topology.run()
    assert f"{path.name}:{line_of_mistake(path)}, record clicks/0/" in where_raised(raised.value)
