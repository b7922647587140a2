"""When the jar of our Java classes is compiled, of what, and by whom. The integration tests have real compilers."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from processor.jvm import jar as jar_module
from processor.jvm.jar import main, sources, task_jar, write_jar
from statehouse.local.errors import CompilationFailed
from tests.support.fake_java import write_fake_java

# What it is asked goes into a file, and two classes into the folder after `-d`.
COMPILES = """
echo "$@" >> "$(dirname "$0")/calls"
while [ "$1" != -d ]; do shift; done
mkdir -p "$2/b" && echo second > "$2/b/B.class" && echo first > "$2/A.class"
"""


class Java:
    """A JAVA_HOME; without a compiler at first."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program = write_fake_java(home, body=COMPILES)

    def add_compiler(self, body: str = COMPILES) -> None:
        (javac := self.program.with_name("javac")).write_text(f"#!/bin/sh\n{body}")
        javac.chmod(0o755)

    def calls(self) -> list[str]:
        return self.program.with_name("calls").read_text().splitlines()


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(jar_module, "resolve_jars", lambda name: (tmp_path / f"{name}.jar",))
    return Java(tmp_path / "java")


@pytest.mark.parametrize(
    ("spark", "fits"), [("3.5.7", False), ("4.0.1", False), ("4.1.0.dev2", True), ("4.10.0", True)]
)
def test_a_class_is_compiled_where_spark_has_what_it_needs(spark: str, *, fits: bool) -> None:
    names = {path.name for path in sources(spark)}
    assert ("LocalFiles.java" in names) is fits
    assert "package-info.java" in names


def test_classes_are_in_order_and_without_times(java: Java, tmp_path: Path) -> None:
    java.add_compiler()
    write_jar([tmp_path / "A.java"], tmp_path / "some.jar")
    with zipfile.ZipFile(tmp_path / "some.jar") as opened:
        assert [(each.filename, each.date_time) for each in opened.infolist()] == [
            ("A.class", (1980, 1, 1, 0, 0, 0)),
            ("b/B.class", (1980, 1, 1, 0, 0, 0)),
        ]
        assert opened.read("A.class") == b"first\n"


def test_java_s_own_compiler_comes_before_eclipse_s(java: Java, tmp_path: Path) -> None:
    write_jar([tmp_path / "A.java"], tmp_path / "some.jar")
    assert java.calls()[-1].startswith(f"-cp {tmp_path}/compiler.jar org.eclipse.jdt")
    java.add_compiler()
    write_jar([tmp_path / "A.java"], tmp_path / "some.jar")
    assert java.calls()[-1].startswith("--release 17 ")
    assert java.calls()[-1].endswith(f" {tmp_path}/A.java")
    assert f" -cp {tmp_path}/spark.jar " in java.calls()[-1]


def test_what_a_compiler_refuses_is_quoted(java: Java, tmp_path: Path) -> None:
    java.add_compiler("echo 'A.java:1: error: no' >&2; exit 1")
    with pytest.raises(
        CompilationFailed, match=r"install statehouse from one\. The compiler said:\n    A\.java:1: err"
    ):
        write_jar([tmp_path / "A.java"], tmp_path / "some.jar")
    assert not (tmp_path / "some.jar").exists()


def test_a_compiler_that_hangs_is_ended(java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jar_module, "_COMPILE_TIMEOUT_S", 0.2)
    java.add_compiler("exec tail -f /dev/null")
    with pytest.raises(CompilationFailed, match=r"nothing in 0\.2 s"):
        write_jar([tmp_path / "A.java"], tmp_path / "some.jar")


def test_it_is_compiled_once_whoever_asks_and_again_for_another_spark(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java.add_compiler()
    with ThreadPoolExecutor(4) as pool:  # the lock is on an open file, so threads contend as processes do
        (jar,) = set(pool.map(lambda _: task_jar(tmp_path), range(4)))
    assert task_jar(tmp_path) == jar
    assert len(java.calls()) == 1
    assert {path.name for path in (tmp_path / "jars").iterdir()} == {jar.parent.name, f"{jar.parent.name}.lock"}
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]
    monkeypatch.setattr(jar_module, "installed_spark", lambda: "4.1.1")
    assert task_jar(tmp_path) != jar
    assert len(java.calls()) == 2


def test_the_one_of_a_wheel_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packaged := tmp_path / "statehouse-task.jar").touch()
    monkeypatch.setattr(jar_module, "_PACKAGED", packaged)
    assert task_jar(tmp_path / "cache") == packaged
    assert not (tmp_path / "cache").exists()


def test_one_for_wheels_is_made_with_the_newest_spark_alone(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    java.add_compiler()
    assert main([str(tmp_path / "some.jar")]) == 0
    monkeypatch.setattr(jar_module, "installed_spark", lambda: "3.5.7")
    assert main([str(tmp_path / "other.jar")]) == 1
    assert capsys.readouterr().err.startswith("error: Spark 3.5.7 is installed, and the jar of a wheel is made with")
    assert not (tmp_path / "other.jar").exists()
