from __future__ import annotations

import os
from pathlib import Path

import pytest

from statehouse.local.errors import JavaNotFound, JavaTooOld, LocalError
from statehouse.local.java import find_java
from tests.support.fake_java import write_fake_java

SYSTEM_PATH = os.environ.get("PATH", "")


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    at_home = write_fake_java(tmp_path / "home", "21.0.1")
    on_path = write_fake_java(tmp_path / "other", "17.0.9")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:{SYSTEM_PATH}"}
    assert find_java(environ) == at_home


def test_the_path_is_searched_without_java_home(tmp_path: Path) -> None:
    program = write_fake_java(tmp_path, "17.0.9")
    assert find_java({"JAVA_HOME": "", "PATH": f"{program.parent}:{SYSTEM_PATH}"}) == program


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}])
def test_no_java_anywhere(environ: dict[str, str]) -> None:
    with pytest.raises(JavaNotFound, match=r"Install Java 17 or newer.*JAVA_HOME"):
        find_java(environ)


def test_a_wrong_java_home_is_not_passed_over(tmp_path: Path) -> None:
    program = write_fake_java(tmp_path / "good")
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is .*nowhere"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(program.parent)})


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.22", 11), ("16", 16)])
def test_too_old(tmp_path: Path, version: str, major: int) -> None:
    program = write_fake_java(tmp_path, version)
    with pytest.raises(JavaTooOld, match=f"{program} is Java {major}, and Java 17 or newer"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": SYSTEM_PATH})


@pytest.mark.parametrize("version", ["17", "17.0.15", "22-ea", "25.0.1"])
def test_new_enough(tmp_path: Path, version: str) -> None:
    program = write_fake_java(tmp_path, version)
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": SYSTEM_PATH}) == program


def test_a_stub_that_only_asks_to_install_java(tmp_path: Path) -> None:
    program = write_fake_java(tmp_path)
    program.write_text("#!/bin/sh\necho 'The operation could not be completed. Unable to locate a Java Runtime.'\n")
    with pytest.raises(JavaNotFound, match="Unable to locate"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": SYSTEM_PATH})


def test_a_program_that_does_not_run(tmp_path: Path) -> None:
    write_fake_java(tmp_path).write_text("#!/no/such/interpreter\n")
    with pytest.raises(JavaNotFound, match="could not be run"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_every_error_has_the_one_root() -> None:
    assert issubclass(JavaNotFound, LocalError)
    assert issubclass(JavaTooOld, LocalError)
    assert issubclass(LocalError, RuntimeError)
