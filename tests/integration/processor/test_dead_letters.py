"""`statehouse dead-letters` and `send` at a real broker; the sink's task writes the dead letters."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.task_rows import OUTPUT
from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.contract.topology import changelog_topic, dead_letters_topic
from statehouse.kafka.ranges import OffsetRange, read_ranges
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import headers, messages
from tests.support.kafka import create_topic
from tests.support.polling import poll_until
from tests.support.settings import SINK_LIMITS
from tests.support.statehouse import staying
from tests.support.task_rows import write_rows
from tests.support.terminal import Terminal

AGES_MS = 1_600_000_000_000


class Shop:
    """An application whose sink has refused records, and the command for it."""

    def __init__(self, session: SparkSession, bootstrap: str, name: str) -> None:
        self.session, self.bootstrap, self.name = session, bootstrap, name
        self.orders, self.users, self.letters = f"{name}-orders", f"{name}-users", dead_letters_topic(name)
        self.changelog = changelog_topic(name, "totals")
        kept = {"retention.ms": "-1"}
        # Else the broker may compact while a test reads: records of years ago beside a transaction's marker of now make
        # it begin a new segment.
        uncleaned = {"min.compaction.lag.ms": str(2**63 - 1)}
        create_topic(bootstrap, self.orders, partitions=2, config=kept)
        create_topic(bootstrap, self.users, config={"cleanup.policy": "compact", **uncleaned})
        create_topic(bootstrap, self.changelog, config=kept)
        create_topic(bootstrap, self.letters, partitions=2, config={"message.timestamp.type": "LogAppendTime", **kept})
        self._batch = -1
        self._query_id = uuid.uuid4().hex

    def write(self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, (key, value) in enumerate(records):
            own = [("trace", b"t%d" % number), ("reason", b"mine"), ("empty", None)]
            producer.produce(topic, key=key, value=value, partition=partition, headers=own, timestamp=AGES_MS + number)
        assert producer.flush(30) == 0

    def refuse(self, topic: str | None, offsets: Sequence[int], partition: int = 0, query: str = "totals") -> None:
        """Have the sink refuse records. The query's rows don't have their bytes any more."""
        target = SinkTarget(
            self.bootstrap,
            self.name,
            query,
            (OutputTopic("totals", self.changelog, 1),),
            self.letters,
            2,
            self._query_id,
            **SINK_LIMITS,
        )
        made = {OUTPUT: 0, KEY: b"made", VALUE: b"of the query"}
        rows = [
            made | {TOPIC: topic, PARTITION: partition, OFFSET: offset, REASON: "not_json", DETAIL: "no\tdocument"}
            for offset in offsets
        ]
        self._batch += 1
        write_rows(self.session, target, self._batch, rows)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(
            app, ["dead-letters", "--bootstrap", self.bootstrap, "--application-id", self.name, *words]
        )

    def shown(self, *words: str) -> list[dict[str, Any]]:
        done = self.run("-o", "json", *words)
        assert done.exit_code == ExitCode.DONE, done.output
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def replayed(self, *words: str) -> dict[str, Any]:
        done = self.run("--replay", "-o", "json", *words)
        assert done.exit_code == ExitCode.DONE, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def found(self, topic: str) -> list[Message]:
        return messages(self.bootstrap, topic)


@pytest.fixture
def shop(spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str]) -> Shop:
    return Shop(spark, kafka.bootstrap, unique_name("shop"))


def content(message: Message) -> tuple[Any, ...]:
    return message.key(), message.value(), message.headers(), message.timestamp(), message.partition()


@pytest.mark.feature("dead-letters-whole")
@pytest.mark.feature("dead-letters-shown")
def test_refused_records_are_shown_as_they_came(shop: Shop) -> None:
    shop.write(shop.orders, [(b"ann", b"{"), (None, b"\xff"), (b"bob", None)], partition=1)
    shop.refuse(shop.orders, [0, 1, 2], partition=1)
    shop.refuse(None, [0], query="other")
    first, second, third, other = shop.shown()
    assert first | {"at_ms": 0, "place": ""} == {
        "place": "",
        "at_ms": 0,
        "query": "totals",
        "reason": "not_json",
        "detail": "no\tdocument",
        "source": {"topic": shop.orders, "partition": 1, "offset": 0},
        "key": "ann",
        "value": "{",
        "headers": [
            {"name": "trace", "value": "t0"},
            {"name": "reason", "value": "mine"},
            {"name": "empty", "value": None},
        ],
        "timestamp_ms": AGES_MS,
        "original": True,
        "replayed_at_ms": None,
    }
    assert first["at_ms"] > AGES_MS, "the time of the refusal"
    assert (second["key"], second["value"]) == (None, {"hex": "ff"})
    assert (third["key"], third["value"]) == ("bob", None)
    assert (other["source"], other["original"], other["value"]) == (None, False, "of the query")
    assert [each["query"] for each in shop.shown("--query", "other")] == ["other"]
    assert shop.shown("--since", "1h") == [first, second, third, other]
    assert shop.shown("--since", str(other["at_ms"] + 1)) == []
    assert [each["place"] for each in shop.shown("--limit", "2")] == [third["place"], other["place"]]
    table = shop.run("-o", "wide").stdout.splitlines()
    assert table[0].split()[:7] == ["TIME", "QUERY", "REASON", "SOURCE", "KEY", "VALUE", "DETAIL"]
    assert f"{shop.orders}:1:0" in table[1]
    assert shop.run("-o", "name").stdout.split() == [each["place"] for each in (first, second, third, other)]


@pytest.mark.feature("dead-letters-replayed")
def test_a_replay_writes_each_once_and_a_second_one_asks(shop: Shop) -> None:
    shop.write(shop.orders, [(b"ann", b"{"), (None, b"\xff"), (b"bob", None), (b"cid", b"1")], partition=1)
    before = shop.found(shop.orders)
    shop.refuse(shop.orders, [0, 1, 2], partition=1)
    assert shop.replayed() == {"replayed": {shop.orders: 3}, "left_out": {}}
    *kept, a, b, c = shop.found(shop.orders)
    assert list(map(content, [a, b, c])) == list(map(content, before[:3]))
    assert len(kept) == 4
    assert all(each["replayed_at_ms"] for each in shop.shown())

    asked = shop.run("--replay")
    assert asked.exit_code == ExitCode.USAGE
    assert "3 dead letters of these were replayed before. Replay again?" in asked.output
    assert "--yes" in asked.output
    assert len(shop.found(shop.orders)) == 7, "nothing was replayed"

    shop.refuse(shop.orders, [3], partition=1)
    assert shop.replayed("--no") == {"replayed": {shop.orders: 1}, "left_out": {}}
    assert shop.replayed("--yes") == {"replayed": {shop.orders: 4}, "left_out": {}}
    assert [each.value() for each in shop.found(shop.orders)[7:]] == [b"1", b"{", b"\xff", None, b"1"]


@pytest.mark.feature("dead-letters-replayed")
def test_somebody_at_a_terminal_is_asked(shop: Shop) -> None:
    shop.write(shop.orders, [(b"ann", b"{")])
    shop.refuse(shop.orders, [0])
    shop.replayed()
    for answer, count in (("n", 2), ("y", 3)):
        terminal = Terminal("dead-letters", "--replay", "--bootstrap", shop.bootstrap, "--application-id", shop.name)
        try:
            terminal.wait_for("was replayed before. Replay again? [y/N]:")
            terminal.press(f"{answer}\n")
            terminal.wait_for("nothing was replayed" if answer == "n" else "REPLAYED")
            assert terminal.ended() == ExitCode.DONE
        finally:
            terminal.close()
        assert len(shop.found(shop.orders)) == count


@pytest.mark.feature("dead-letters-replayed")
def test_what_can_not_go_back_is_left_out_and_rows_only_go_if_somebody_says_so(shop: Shop) -> None:
    shop.write(shop.users, [(b"ann", b"old"), (b"ann", b"new")])
    shop.write(shop.changelog, [(b"k", b"v")])
    shop.refuse(shop.users, [0])
    shop.refuse(shop.users, [7])  # gone
    shop.refuse(shop.changelog, [0])
    shop.refuse(f"{shop.name}-nowhere", [0])
    shop.refuse(None, [0])
    assert "may put an old row in place of a newer one" in shop.run("--replay").output
    left_out = {"no_original": 2, "changelog": 1, "no_source": 1}
    assert shop.replayed("--no") == {"replayed": {}, "left_out": left_out}
    done = shop.run("--replay", "--yes")
    assert done.stdout.split() == ["TOPIC", "REPLAYED", shop.users, "1"]
    assert "left out, 1 of a store's changelog, which only the processor may write" in done.stderr
    assert [each.value() for each in shop.found(shop.users)] == [b"old", b"new", b"old"]
    assert len(shop.found(shop.changelog)) == 1


def test_a_replay_that_begins_later_ends_one_that_has_begun(shop: Shop) -> None:
    """Two people at once: only one of them writes."""
    shop.write(shop.orders, [(b"ann", b"{")])
    shop.refuse(shop.orders, [0])
    shop.replayed()
    terminal = Terminal("dead-letters", "--replay", "--bootstrap", shop.bootstrap, "--application-id", shop.name)
    try:
        terminal.wait_for("Replay again? [y/N]:")
        assert shop.replayed("--yes")["replayed"] == {shop.orders: 1}
        terminal.press("y\n")
        terminal.wait_for("somebody else has begun a replay of this application")
        assert terminal.ended() == ExitCode.ERROR
    finally:
        terminal.close()
    assert len(shop.found(shop.orders)) == 3


@pytest.mark.feature("dead-letters-shown")
def test_new_ones_are_followed_until_somebody_interrupts(shop: Shop, tmp_path: Path) -> None:
    shop.write(shop.orders, [(b"ann", b"{"), (b"bob", b"[")])
    shop.refuse(shop.orders, [0])
    said = tmp_path / "said"
    words = ("dead-letters", "--follow", "--bootstrap", shop.bootstrap, "--application-id", shop.name)
    with staying(tmp_path, said, *words) as following:
        poll_until(lambda: f"{shop.orders}:0:0  ann  {{" in said.read_text(), 60, "the one that is there")
        shop.refuse(shop.orders, [1])
        poll_until(lambda: f"{shop.orders}:0:1  bob  [" in said.read_text(), 60, "a new one")
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == ExitCode.INTERRUPTED
    assert "Traceback" not in said.read_text()


def test_wrong_words_say_what_to_do(shop: Shop) -> None:
    assert "exclude each other" in shop.run("--follow", "--replay").output
    wrong = shop.run("--application-id", f"{shop.name}-not")
    assert wrong.exit_code == ExitCode.USAGE
    assert "the processor makes it at its first start; check --application-id and --bootstrap" in wrong.output
    assert shop.shown() == []
    assert "no dead letters" in shop.run().stderr


def test_ranges_are_read_whole_in_order_and_without_what_is_gone(shop: Shop) -> None:
    shop.write(shop.orders, [(None, b"%d" % number) for number in range(2_000)])
    ranges = [
        OffsetRange(shop.orders, 0, 5, 7),
        OffsetRange(shop.orders, 0, 1_500, 1_502),
        OffsetRange(shop.orders, 0, 1_998, 3_000),
        OffsetRange(shop.orders, 1, 0, 10),
        OffsetRange(shop.orders, 9, 0, 10),
        OffsetRange(f"{shop.orders}-not", 0, 0, 10),
    ]
    read = [message.value() for message in read_ranges(shop.bootstrap, ranges, "tests", 10.0)]
    assert read == [b"5", b"6", b"1500", b"1501", b"1998", b"1999"]


def test_brokers_that_are_away_end_a_read(shop: Shop) -> None:
    with pytest.raises(KafkaException, match="Failed to get metadata"):
        list(read_ranges("127.0.0.1:1", [OffsetRange(shop.orders, 0, 0, 1)], "tests", 0.5))


@pytest.mark.feature("send-records")
def test_a_sent_record_is_where_send_says(shop: Shop) -> None:
    def send(*words: str, lines: str | None = None) -> Result:
        return CliRunner().invoke(app, ["send", "--bootstrap", shop.bootstrap, *words], input=lines)

    done = send(shop.orders, "ann", '{"a": 1}')
    assert done.stdout.split()[:3] == ["TOPIC", "PARTITION", "OFFSET"], done.output
    topic, partition, offset = done.stdout.split()[3:]
    (record,) = shop.found(shop.orders)
    assert (topic, int(partition), int(offset)) == (shop.orders, record.partition(), record.offset())
    assert (record.key(), record.value(), headers(record)) == (b"ann", b'{"a": 1}', {})

    log = shop.changelog
    assert send(log, "-", lines="one\ntwo\n\n").stdout.split() == [f"{log}:0:{number}" for number in range(3)]
    assert send(log, "-o", "name", "--", "-2").stdout == f"{log}:0:3\n"
    assert send(log, "k", "-", "-o", "json", lines="x").stdout == (
        f'{{"topic": "{log}", "partition": 0, "offset": 4}}\n'
    )
    assert [each.value() for each in shop.found(log)] == [b"one", b"two", b"", b"-2", b"x"]

    missing = send(f"{shop.orders}s", "v")
    assert missing.exit_code == ExitCode.USAGE
    assert f"did you mean {shop.orders}?" in missing.output
    assert "nothing was sent" in missing.output
    assert send(shop.orders, "a", "b", "c").exit_code == ExitCode.USAGE
    assert "send a smaller value" in send(shop.orders, "v" * 2_000_000).output
    assert "give a key" in send(shop.users, "v").output
