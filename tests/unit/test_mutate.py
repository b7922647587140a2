from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import grimp
import pytest

from tools import mutants, mutate

_SOURCE: Final = '''"""A module."""

from __future__ import annotations

LIMIT: int | None = 3


def both(*, first: int | None, second: int) -> int | None:
    """Add them."""
    if first is None:
        return None
    return first + second
'''


def test_the_deciding_modules_are_those_of_the_purity_contract() -> None:
    found = mutants.deciding_modules()
    assert {
        "statehouse.contract.assignment",
        "processor.ownership.planning.planner",
        "router.choice.candidates",
    } <= set(found)
    assert all(mutants.path_of(module).is_file() for module in found)
    pyproject = tomllib.loads((mutants.ROOT / "pyproject.toml").read_text())
    (contract,) = (each for each in pyproject["tool"]["importlinter"]["contracts"] if each["name"] == mutants.CONTRACT)
    assert set(contract["source_modules"]) <= set(found)


def test_a_package_in_the_contract_stands_for_its_modules(tmp_path: Path) -> None:
    (tmp_path / "house/room").mkdir(parents=True)
    for name in ("house/room/__init__.py", "house/room/door.py", "house/other.py", "house/lone.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "pyproject.toml").write_text(
        f'[[tool.importlinter.contracts]]\nname = "{mutants.CONTRACT}"\nsource_modules = ["house.room", "house.lone"]\n'
    )
    assert mutants.deciding_modules(tmp_path) == ["house.lone", "house.room", "house.room.door"]
    assert mutants.path_of("house.room", tmp_path) == tmp_path / "house/room/__init__.py"


def test_draws_the_same_mutants_from_the_same_seed() -> None:
    drawn = mutants.draw({"house": _SOURCE}, seed=1, count=3)
    assert drawn == mutants.draw({"house": _SOURCE}, seed=1, count=3)
    assert drawn != mutants.draw({"house": _SOURCE}, seed=2, count=3)
    assert len({mutant.place for mutant in drawn}) == 3


def test_draws_one_change_at_each_place_that_is_evaluated() -> None:
    drawn = mutants.draw({"house": _SOURCE}, seed=1, count=100)
    lines = _SOURCE.splitlines()
    places = [lines[each.place.start[0] - 1][each.place.start[1] : each.place.end[1]] for each in drawn]
    # The limit, the condition and its operator, the sum; neither an annotation nor what makes parameters keywords.
    assert sorted(places) == ["+", "3", "first is None", "is"]


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (_SOURCE, False),
        (_SOURCE.replace("int | None", "int & None"), False),
        (_SOURCE.replace("*,", "+,"), False),
        (_SOURCE.replace("Add", "Take"), True),
        (_SOURCE.replace("first +", "first -"), True),
        (_SOURCE.replace("= 3", "= 4"), True),
    ],
)
def test_a_change_is_other_python_outside_of_annotations(code: str, changes: bool) -> None:
    assert mutants.is_change(_SOURCE, code) is changes


def test_asks_a_modules_own_tests_first() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (
        ("tests.unit.test_far", "house.hall"),
        ("house.hall", "house.stairs"),
        ("house.stairs", "house.door"),
        ("tests.unit.test_alarm", "house.door"),
        ("tests.unit.test_door", "house.door"),
        ("tests.property.test_keys", "tests.support.keys"),
        ("tests.support.keys", "house.door"),
        ("tests.simulation.test_simulation", "house.door"),
        ("tests.unit.test_nothing", "house.hall"),
        ("house.door", "house.handle"),
    ):
        graph.add_import(importer=importer, imported=imported)
    assert list(mutate.distances_of_tests("house.door", graph).items()) == [
        ("tests/unit/test_door.py", 1),
        ("tests/unit/test_alarm.py", 1),
        ("tests/property/test_keys.py", 2),
        ("tests/unit/test_far.py", 3),
        ("tests/unit/test_nothing.py", 3),
    ]


def test_shows_the_lines_that_a_mutant_changes() -> None:
    source = mutants.path_of("statehouse.contract.consistency").read_text()
    mutant = mutants.draw({"statehouse.contract.consistency": source}, seed=1, count=1)[0]
    shown = mutants.diff_of(mutant, source).splitlines()
    assert shown[0] == "--- statehouse/contract/consistency.py"
    assert [line[0] for line in shown[3:]] == ["-", "+"]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([(0, "")], ""),
        ([(1, "once"), (0, "")], ""),
        ([(1, "once"), (1, "twice")], "twice"),
        ([(1, "once"), (None, "no end")], "no end"),
        ([(2, "an import failed")], "an import failed"),
        ([(4, "ImportError while loading conftest 'x'")], "ImportError while loading conftest 'x'"),
        ([(None, "no end")], "no end"),
    ],
)
def test_a_mutant_is_caught_by_what_fails_twice_or_never_ends(
    runs: list[tuple[int | None, str]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(runs)
    monkeypatch.setattr(mutate, "run_tests", lambda *_arguments: next(left))
    assert mutate.why_failed(Path(), ["test_it.py"], 1, "-x") == why
    assert list(left) == [], "nothing more was asked than needed, and nothing less"


def test_what_says_nothing_of_a_mutant_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "run_tests", lambda *_arguments: (4, "no such file"))
    with pytest.raises(RuntimeError, match="pytest ended with 4:\nno such file"):
        mutate.why_failed(Path(), ["test_it.py"], 1)


def test_runs_the_tests_of_a_copy(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import hypothesis\nhypothesis.settings.register_profile('mutation', deadline=None)\n"
    )
    (tmp_path / "house.py").write_text("DOORS = 1\n")
    (tmp_path / "test_house.py").write_text("from house import DOORS\ndef test_doors(): assert DOORS == 2\n")
    code, output = mutate.run_tests(tmp_path, ["test_house.py"], 60)
    assert code == 1
    assert "assert 1 == 2" in output
    assert mutate.run_tests(tmp_path, ["test_house.py"], 0.01) == (None, "the tests did not end")
