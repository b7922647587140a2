"""The lines of logs that grow, are cut, and begin anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.local import log_lines
from statehouse.local.log_lines import FollowedLog, NoLog, chosen_logs, is_news, logs_of


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "part.log"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


@pytest.mark.parametrize("last", [0, 1, 2, 3, 9])
def test_it_begins_with_the_last_lines(log: Path, last: int):
    append(log, "one\ntwo\nthree\nfo")
    followed = FollowedLog(log, last)
    assert followed.lines() == ["one", "two", "three"][3 - min(last, 3) :]
    append(log, "ur\nfive\n")
    assert followed.lines() == ["four", "five"]
    assert followed.lines() == []


def test_a_log_that_comes_later(log: Path):
    followed = FollowedLog(log, 5)
    assert followed.lines() == []
    append(log, "one\n")
    assert followed.lines() == ["one"]


@pytest.mark.feature("logs-parts-shown")
def test_a_log_that_is_cut_or_made_anew_is_read_from_its_beginning(log: Path):
    append(log, "one\ntwo\nthree\n")
    followed = FollowedLog(log, 0)
    log.write_text("four\n")
    assert followed.lines() == ["four"]
    other = log.with_name("other")
    append(other, "five\nsix\nseven\n")
    other.replace(log)
    assert followed.lines() == ["five", "six", "seven"]


def test_bytes_that_are_no_text_are_shown_all_the_same(log: Path):
    log.write_bytes(b"a\xffb\r\n")
    assert FollowedLog(log, 1).lines() == ["a\N{REPLACEMENT CHARACTER}b"]


def test_a_line_without_end_takes_no_more_than_is_read_at_once(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_lines, "_READ_MAX", 4)
    followed = FollowedLog(log, 0)
    append(log, "abcdefgh")
    assert followed.lines() == ["abcd"]
    assert followed.lines() == ["efgh"]


@given(text=st.text("ab\n", max_size=60), last=st.integers(0, 8), block=st.integers(1, 20))
def test_the_last_lines_are_those_of_the_whole_text(tmp_path_factory, text: str, last: int, block: int):
    log = tmp_path_factory.mktemp("log") / "part.log"
    log.write_text(text)
    whole = text.split("\n")[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_lines, "_BLOCK", block)
        followed = FollowedLog(log, last)
    assert followed.lines() == whole[max(0, len(whole) - last) :]


NEWS = (
    '{"event": "batch committed", "level": "info"}',
    "26/11/28 03:26:59 ERROR MicroBatchExecution: Query counts terminated with error",
    "26/11/28 03:26:59 WARN KafkaDataConsumer: KafkaDataConsumer is not running in UninterruptibleThread",
    "Traceback (most recent call last):",
    '  File "topology.py", line 19, in build',
    "my own print",
)
CHATTER = (
    "",
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    'Setting default log level to "WARN".',
    "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
    'Setting Spark log level to "ERROR".',
    'SLF4J: Failed to load class "org.slf4j.impl.StaticLoggerBinder".',
    "SLF4J: Defaulting to no-operation (NOP) logger implementation",
    "SLF4J: See http://www.slf4j.org/codes.html#StaticLoggerBinder for further details.",
    "26/11/28 03:26:59 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 10.0.0.2",
    "26/11/28 03:26:59 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    "26/11/28 03:27:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...",
    "Starting Streaming TransformWithStateInPandas Python worker.",
    "Streaming TransformWithStateInPandas Python worker Completed execution of UDF: <bound method ...>.",
    "Streaming foreachBatch worker is starting with url sc://localhost and sessionId 1.",
)


@pytest.mark.feature("logs-without-chatter")
def test_what_spark_says_of_itself_is_no_news() -> None:
    assert [line for line in NEWS if not is_news(line)] == []
    assert [line for line in CHATTER if is_news(line)] == []


@pytest.mark.feature("logs-without-chatter")
@given(lines=st.lists(st.sampled_from([*NEWS, *CHATTER[:4]])), last=st.integers(0, 8), block=st.integers(1, 200))
def test_the_last_lines_are_those_of_what_is_shown(tmp_path_factory, lines: list[str], last: int, block: int):
    log = tmp_path_factory.mktemp("log") / "part.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    shown = [line for line in lines if is_news(line)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_lines, "_BLOCK", block)
        followed = FollowedLog(log, last, is_news)
    assert followed.lines() == shown[max(0, len(shown) - last) :]


def test_which_logs_there_are(tmp_path: Path):
    with pytest.raises(NoLog, match="no log of any part; nothing was started there"):
        chosen_logs(tmp_path, [])
    (tmp_path / "logs").mkdir()
    for name in ("kafka", "node-a", "sample-data"):
        (tmp_path / "logs" / f"{name}.log").touch()
    assert list(logs_of(tmp_path)) == ["kafka", "node-a", "sample-data"]
    assert logs_of(tmp_path)["kafka"] == (tmp_path / "logs" / "kafka.log", tmp_path / "kafka" / "broker.log")
    assert list(chosen_logs(tmp_path, ["node-a", "kafka"])) == ["node-a", "kafka"]
    with pytest.raises(NoLog, match="no log of nobody; there are logs of: kafka, node-a, sample-data"):
        chosen_logs(tmp_path, ["node-a", "nobody"])
