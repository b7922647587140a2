from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from statehouse.local import jars
from statehouse.local.errors import JavaNotFound, ResolverMissing, ResolverUnreachable
from statehouse.local.jars import (
    BROKER_JARS,
    NEWEST_SPARK,
    SPARK_JARS,
    JarsDownload,
    class_path,
    default_cache_dir,
    module_file,
    resolve_jars,
    spark_home,
)
from tests.support.fake_java import RECEIVES, RESOLVES, calls, write_fake_java


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME still to be filled."""
    path = tmp_path / "java"
    monkeypatch.setenv("JAVA_HOME", str(path))
    monkeypatch.delenv("STATEHOUSE_IVY_SETTINGS", raising=False)
    return path


def silent(_download: JarsDownload) -> None:
    pass


def test_a_second_call_runs_nothing(home: Path, tmp_path: Path) -> None:
    program = write_fake_java(home, body=RESOLVES)
    told: list[JarsDownload] = []
    first = resolve_jars("broker", tmp_path / "cache", told.append)
    program.unlink()
    count = len(told)
    assert resolve_jars("broker", tmp_path / "cache", told.append) == first
    assert len(told) == count >= 1
    assert told[0].title == "the Kafka broker's jars"
    assert [jar.name for jar in first] == ["kafka_2.13-4.1.0.jar", "slf4j-simple-1.7.36.jar"]
    assert all(jar.is_file() for jar in first)


def test_progress_goes_to_stderr_by_default(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_java(home, body=RESOLVES)
    resolve_jars("broker", tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "downloading the Kafka broker's jars, about 44 MB, once: looking for what they need\n"


@pytest.mark.feature("start-says-does")
def test_progress_is_what_is_on_the_disk(home: Path, tmp_path: Path) -> None:
    """As the resolver leaves it there: descriptions of modules first, then jars, the one that comes with `.part`."""
    write_fake_java(home, body=RECEIVES)
    told: list[JarsDownload] = []
    resolve_jars("broker", tmp_path, lambda step: told.append(step) or note(home, step))
    seen = list(dict.fromkeys(told))
    assert [(step.modules, step.received_bytes, step.jars) for step in seen] == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 5_000_000, 1),
    ]
    assert all(step.expected_bytes == 44_000_000 for step in seen)
    assert [str(step) for step in seen] == [
        "the Kafka broker's jars, about 44 MB, once: looking for what they need",
        "the Kafka broker's jars, about 44 MB, once: looking for what they need, 1 found",
        "the Kafka broker's jars: 5.0 of about 44 MB, 1 jars complete",
    ]


def note(home: Path, step: JarsDownload) -> None:
    """Let the script go on: it waits for the report of a step."""
    (home / "bin" / f"told-{step.modules}-{step.jars}").touch()


def test_callers_at_the_same_time_share_one_fetch(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES)
    with ThreadPoolExecutor(8) as pool:  # the lock is on an open file, so threads contend as processes do
        answers = set(pool.map(lambda _: resolve_jars("broker", tmp_path, silent), range(8)))
    assert len(answers) == 1
    assert calls(home) == 1


def test_nothing_but_the_jars_and_the_lock_stays(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES)
    (directory,) = {jar.parent for jar in resolve_jars("broker", tmp_path / "cache", silent)}
    assert {path.name for path in directory.parent.iterdir()} == {directory.name, f"{directory.name}.lock"}


def test_a_deleted_jar_is_fetched_again(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES)
    first = resolve_jars("broker", tmp_path, silent)
    first[0].unlink()
    assert resolve_jars("broker", tmp_path, silent) == first
    assert first[0].is_file()
    assert calls(home) == 2


def test_a_failing_resolver_is_quoted_and_leaves_no_set_behind(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body="echo 'line one'; echo 'Host central not found' >&2; exit 1")
    with pytest.raises(ResolverUnreachable, match="Host central not found") as caught:
        resolve_jars("broker", tmp_path / "cache", silent)
    assert "    line one\n    Host central not found" in str(caught.value)
    assert "Check the network" in str(caught.value)
    assert "STATEHOUSE_IVY_SETTINGS" in str(caught.value)
    assert [path.suffix for path in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_the_next_try_after_a_failure_can_succeed(home: Path, tmp_path: Path) -> None:
    program = write_fake_java(home, body="exit 1")
    with pytest.raises(ResolverUnreachable, match="printed nothing"):
        resolve_jars("broker", tmp_path / "cache", silent)
    program.unlink()
    program.parent.rmdir()
    write_fake_java(home, body=RESOLVES)
    assert resolve_jars("broker", tmp_path / "cache", silent)


def test_success_without_the_jars_is_a_failure(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body="exit 0")
    with pytest.raises(ResolverUnreachable, match=r"brought no kafka_2\.13, slf4j-simple"):
        resolve_jars("broker", tmp_path / "cache", silent)


def test_a_resolver_that_hangs_is_ended(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_RESOLVE_TIMEOUT_S", 0.2)
    write_fake_java(home, body="exec tail -f /dev/null")
    with pytest.raises(ResolverUnreachable, match=r"not done after 0\.2 s"):
        resolve_jars("broker", tmp_path / "cache", silent)


def test_own_resolver_settings_are_passed_on(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_IVY_SETTINGS", "/etc/mirror.xml")
    write_fake_java(home, body='echo "$@"; exit 1')
    with pytest.raises(ResolverUnreachable, match=r"-settings /etc/mirror.xml"):
        resolve_jars("broker", tmp_path / "cache", silent)


def test_without_pyspark(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_java(home)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ResolverMissing, match=r"pip install 'statehouse\[processor\]'"):
        resolve_jars("broker", tmp_path / "cache", silent)


def test_without_java(home: Path, tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound):
        resolve_jars("broker", tmp_path / "cache", silent)


def test_the_cache_directory_is_a_setting(tmp_path: Path) -> None:
    assert default_cache_dir({"STATEHOUSE_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert default_cache_dir({}) == Path.home() / ".cache" / "statehouse"


def test_module_files_hold_the_pins() -> None:
    root = ET.fromstring(module_file("spark", SPARK_JARS[NEWEST_SPARK]))  # noqa: S314 - our own text
    dependency, avro = root.iter("dependency")
    (override,) = root.iter("override")
    assert (dependency.get("name"), dependency.get("rev")) == ("spark-sql-kafka-0-10_2.13", "4.2.0")
    assert (avro.get("name"), avro.get("rev")) == ("spark-avro_2.13", "4.0.1")
    assert (override.get("module"), override.get("rev")) == ("spark-token-provider-kafka-0-10_2.13", "4.0.0")
    assert module_file("broker", BROKER_JARS) != module_file("broker", SPARK_JARS[NEWEST_SPARK])


def test_class_path_joins_with_the_systems_separator() -> None:
    assert class_path((Path("/a/x.jar"), Path("/b/y.jar"))) == "/a/x.jar:/b/y.jar"


def test_spark_comes_from_its_package_unless_spark_home_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert [*(spark_home() / "jars").glob("spark-core_*.jar")]
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home() == Path("/opt/spark")
