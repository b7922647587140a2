"""The wheel as `pip wheel` builds it: what a user installs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from typing import Final

import pytest

from tests.deploy.files import ROOT

_PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PACKAGES: Final = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(directory), str(ROOT)], check=True, timeout=120)
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def test_has_each_package_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in _PACKAGES} <= set(wheel.namelist())
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == set(_PACKAGES)


def test_has_the_licence(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_says_what_it_is(metadata: Message) -> None:
    assert metadata["Version"] == _PYPROJECT["project"]["version"]
    assert metadata["Summary"] == _PYPROJECT["project"]["description"]
    assert metadata.get_all("Classifier") == _PYPROJECT["project"]["classifiers"]
