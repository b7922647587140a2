from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statehouse.local.class_archives import (
    ClassArchives,
    ProgramFile,
    archive_key,
    archive_name,
    is_chosen,
    is_whole,
    joined,
    make_in_background,
)
from statehouse.local.errors import ArchiveFailed, LocalError
from tests.support.fake_java import write_fake_java

JAR = ProgramFile("/jars/a.jar", 10, 100)


@pytest.fixture
def archives(tmp_path: Path) -> ClassArchives:
    jar = tmp_path / "a.jar"
    jar.write_text("classes")
    return ClassArchives("program", write_fake_java(tmp_path / "java"), [jar], tmp_path / "cache")


def train(archive: Path, log: Path) -> None:
    log.write_text("trained")
    archive.write_text("loaded classes")


def never(_archive: Path, _log: Path) -> None:
    raise AssertionError("there is an archive already")


@pytest.mark.parametrize(
    "other",
    [ProgramFile("/jars/b.jar", 10, 100), ProgramFile("/jars/a.jar", 11, 100), ProgramFile("/jars/a.jar", 10, 101)],
)
def test_another_jar_has_another_key(other: ProgramFile) -> None:
    assert archive_key([JAR]) != archive_key([other])


def test_the_order_of_jars_makes_no_other_key() -> None:
    java = ProgramFile("/bin/java", 1, 1)
    assert archive_key([JAR, java]) == archive_key([java, JAR]) != archive_key([JAR])


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        (archive_name("spark", "0123456789ab", 5), 5, True),
        (archive_name("spark", "0123456789ab", 5), 4, False),
        (archive_name("spark", "0123456789ab", 5), 0, False),
        ("spark-0123456789ab.jsa", 0, False),
    ],
)
def test_a_file_that_was_cut_off_is_no_archive(name: str, size: int, expected: bool) -> None:
    assert is_whole(name, size) is expected


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=a.jsa", "-XX:ArchiveClassesAtExit=a.jsa", "-Xshare:off"])
def test_who_chooses_an_archive_is_let_alone(archives: ClassArchives, option: str) -> None:
    archives.make(train)
    assert is_chosen(["", f"-Da=b {option}"])
    assert archives.options(["", f"-Da=b {option}"]) == []
    assert archives.options(["-Da=b", ""])


def test_options_survive_blanks_and_theirs_come_last() -> None:
    text = joined(["-XX:SharedArchiveFile=/my cache/a.jsa"], "-Xss4m")
    assert shlex.split(text) == ["-XX:SharedArchiveFile=/my cache/a.jsa", "-Xss4m"]
    assert joined([], "-Xss4m") == "-Xss4m"


def test_what_was_made_is_found_and_not_made_again(archives: ClassArchives) -> None:
    assert archives.find() is None
    assert archives.options([]) == []
    made = archives.make(train)
    assert made.read_text() == "loaded classes"
    assert archives.find() == made == archives.make(never)
    assert archives.options([])[0] == f"-XX:SharedArchiveFile={made}"
    assert {path.name for path in made.parent.iterdir()} == {made.name, ".lock", "program.log"}


def test_makers_at_the_same_time_share_one_training(archives: ClassArchives) -> None:
    trained: list[Path] = []

    def once(archive: Path, log: Path) -> None:
        trained.append(archive)
        train(archive, log)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: archives.make(once), range(4)))) == 1
    assert len(trained) == 1


def test_a_damaged_archive_is_not_used_and_made_again(archives: ClassArchives) -> None:
    made = archives.make(train)
    made.write_text("load")
    assert archives.options([]) == []
    assert archives.make(train) == made
    assert archives.options([])


def test_a_changed_jar_needs_another_archive(archives: ClassArchives) -> None:
    made = archives.make(train)
    archives.jars[0].write_text("more classes")
    assert archives.find() is None
    assert archives.make(train) != made


def test_a_failed_training_leaves_nothing_but_its_log(archives: ClassArchives) -> None:
    def fail(archive: Path, log: Path) -> None:
        train(archive, log)
        raise LocalError("the training ended")

    with pytest.raises(LocalError, match="the training ended"):
        archives.make(fail)
    assert archives.find() is None
    assert archives.cache_dir is not None
    assert {path.name for path in (archives.cache_dir / "class-archives").iterdir()} == {".lock", "program.log"}


def test_what_a_killed_maker_left_is_removed(archives: ClassArchives) -> None:
    folder = archives.make(train).parent
    left = folder / "making-abc" / "classes.jsa"
    left.parent.mkdir()
    left.touch()
    archives.jars[0].write_text("more classes")
    archives.make(train)
    assert not left.parent.exists()


def test_java_that_writes_none(archives: ClassArchives) -> None:
    with pytest.raises(ArchiveFailed, match="Java wrote none"):
        archives.make(lambda _archive, _log: None)


def test_an_archive_that_java_does_not_start_with_is_not_kept(tmp_path: Path) -> None:
    refuses = "echo 'Unrecognized VM option VerifySharedSpaces' >&2; exit 1"
    archives = ClassArchives("program", write_fake_java(tmp_path, body=refuses), [], tmp_path / "cache")
    with pytest.raises(ArchiveFailed, match="Unrecognized VM option"):
        archives.make(train)
    assert archives.find() is None


def test_the_last_used_archives_are_kept(archives: ClassArchives) -> None:
    made = []
    for count in range(4):
        archives.jars[0].write_text("x" * count)
        made.append(archives.make(train))
        os.utime(made[-1], (count, count))
    assert [path.exists() for path in made] == [False, True, True, True]


def test_a_path_that_java_would_split_is_not_used(tmp_path: Path) -> None:
    archives = ClassArchives("program", write_fake_java(tmp_path / "java"), [], tmp_path / "a:b")
    archives.make(train)
    assert archives.options([]) == []


def test_a_maker_in_the_background_is_told_to_be_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    (tmp_path / "maker.py").write_text(f"import sys\nopen({str(told)!r}, 'w').write(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert make_in_background("maker").wait(30.0) == 0
    assert told.read_text() == "--idle"
