"""The jar of our Java classes: compiled by Java's compiler or Eclipse's, once for each Spark."""

from __future__ import annotations

import shlex
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from processor.jvm import jar as jar_module
from processor.jvm.jar import main, sources, task_jar, write_jar
from statehouse.local.errors import CompilationFailed
from statehouse.local.java import find_java

LOCAL_FILES = "statehouse/files/LocalFiles.class"
JAVA_17 = 61


@pytest.fixture(params=["javac", "ecj"])
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
        names = opened.namelist()
        assert names == sorted(names)
        assert LOCAL_FILES in names
        assert {int.from_bytes(opened.read(name)[6:8]) for name in names} == {JAVA_17}


def test_what_the_compiler_refuses_is_quoted(compiler: str, tmp_path: Path) -> None:
    (source := tmp_path / "Wrong.java").write_text("class Wrong { int number = absent; }")
    with pytest.raises(CompilationFailed, match=r"(?s)install statehouse from one\. The compiler said:.*absent"):
        write_jar([source], tmp_path / "some.jar")
    assert not (tmp_path / "some.jar").exists()


def test_it_is_compiled_once_whoever_asks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        (jar,) = set(pool.map(lambda _: task_jar(tmp_path), range(4)))
    before = jar.stat()
    assert task_jar(tmp_path).stat() == before
    assert {path.name for path in (tmp_path / "jars").iterdir()} == {jar.parent.name, f"{jar.parent.name}.lock"}
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]


def test_the_one_of_a_wheel_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packaged := tmp_path / "statehouse-task.jar").touch()
    monkeypatch.setattr(jar_module, "_PACKAGED", packaged)
    assert task_jar(tmp_path / "cache") == packaged
    assert not (tmp_path / "cache").exists()


def test_one_for_wheels_is_made_with_the_newest_spark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jar_module, "installed_spark", lambda: "3.5.7")
    assert main([str(tmp_path / "some.jar")]) == 1
    assert capsys.readouterr().err.startswith("error: Spark 3.5.7 is installed, and the jar of a wheel is made with")


@pytest.mark.parametrize(
    ("spark", "fits"), [("3.5.7", False), ("4.0.1", False), ("4.1.0.dev2", True), ("4.10.0", True)]
)
def test_a_class_is_compiled_where_spark_has_what_it_needs(spark: str, *, fits: bool) -> None:
    names = {path.name for path in sources(spark)}
    assert ("LocalFiles.java" in names) is fits
    assert "package-info.java" in names
