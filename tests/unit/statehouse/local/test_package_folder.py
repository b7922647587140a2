"""Examples that an installed package carries as data."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path

import pytest

from statehouse.local.applications import GROUP, NoApplication, find_application
from statehouse.local.package_folder import FOLDER, hidden_by, import_folder


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def leaderboard() -> EntryPoint:
    (found,) = entry_points(group=GROUP, name="leaderboard")
    return found


def test_a_checkout_has_none(leaderboard: EntryPoint) -> None:
    assert not FOLDER.exists()
    before = [*sys.path]
    assert import_folder(leaderboard) == ""
    assert sys.path == before


@pytest.mark.feature("wheel-alone-empty")
def test_they_are_imported_from_their_folder(leaderboard: EntryPoint, tmp_path: Path) -> None:
    assert import_folder(leaderboard, tmp_path) == str(tmp_path)
    assert import_folder(leaderboard, tmp_path) == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_those_of_other_packages_are_not(tmp_path: Path) -> None:
    class Other(Distribution):
        def read_text(self, filename: str) -> str | None:
            return "Name: other\nVersion: 1\n" if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    theirs = EntryPoint("leaderboard", "other.topology", GROUP)._for(Other())  # type: ignore[attr-defined]
    assert import_folder(theirs, tmp_path) == ""
    assert import_folder(EntryPoint("leaderboard", "other.topology", GROUP), tmp_path) == ""


@pytest.fixture
def in_folder_with_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_package_of_the_same_name_in_the_working_directory_is_refused(in_folder_with_examples: Path) -> None:
    folder = in_folder_with_examples
    assert find_application("leaderboard").name == "leaderboard", "a folder that is no package hides nothing"
    (folder / "examples" / "__init__.py").touch()
    assert hidden_by("examples.leaderboard.local", folder) == folder / "examples" / "__init__.py"
    with pytest.raises(NoApplication, match=r"examples/__init__\.py would be imported.*Run this in another folder"):
        find_application("leaderboard")
    assert hidden_by("json", folder) is None
