"""The jar of our Java classes, compiled by Java's own compiler and by Eclipse's."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import pytest

from processor.jvm.jar import main, write_jar
from statehouse.local.errors import CompilationFailed
from statehouse.local.java import find_java

LOCAL_FILES = "statehouse/files/LocalFiles.class"
JAVA_17 = 61

pytestmark = pytest.mark.parametrize("compiler", ["javac", "ecj"], indirect=True)


@pytest.fixture
def compiler(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """With Eclipse's, JAVA_HOME has a Java and no compiler."""
    if request.param == "ecj":
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_java()))} "$@"\n')
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return str(request.param)


def test_its_bytes_are_the_same_twice_and_java_17_runs_them(compiler: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jar", tmp_path / "second.jar"
    assert main([str(first)]) == main([str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as opened:
        assert LOCAL_FILES in opened.namelist()
        assert {int.from_bytes(opened.read(name)[6:8]) for name in opened.namelist()} == {JAVA_17}


def test_what_the_compiler_refuses_is_quoted(compiler: str, tmp_path: Path) -> None:
    (source := tmp_path / "Wrong.java").write_text("class Wrong { int number = absent; }")
    with pytest.raises(CompilationFailed, match=r"(?s)The compiler said:.*absent"):
        write_jar([source], tmp_path / "some.jar")
