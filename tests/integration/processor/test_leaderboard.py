"""The leaderboard on a real broker and a real Spark: what it must write, and that crashes change nothing.

One broker and one driver for all tests, in this order; each has players and products of its own. The last one kills
the driver.

At small size the suites in tests/e2e show the same, with nodes that serve.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from examples.leaderboard import sample
from examples.leaderboard.model import Score, leaderboards
from examples.leaderboard.topology import PLAYERS, PRODUCTS, SCORES, STORE, application_id
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic, commits_topic, dead_letters_topic
from statehouse.kafka.clients import admin
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import create_topics
from tests.integration.processor.support import (
    ProcessorProcess,
    commits,
    headers,
    is_alive,
    messages,
    store_of,
)
from tests.support.kafka import create_topic
from tests.support.polling import poll_until

CHANGELOG = changelog_topic(application_id, STORE)
DEAD_LETTERS = dead_letters_topic(application_id)
PARTITIONS = 4

Place = tuple[int, int]
Board = Callable[[int, list[float]], list[dict[str, Any]]]
DeadLetters = Callable[[int, set[Place]], list[Message]]
BATCH_S = 60.0

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]


class Feed:
    """Produces records with growing timestamps, a millisecond apart, so that their order is known."""

    def __init__(self, bootstrap: str):
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        # Not long ago: the broker deletes what is older than a topic's retention, by these times.
        self.began_ms = int(time.time() * 1000) - 3_600_000
        self._clock = itertools.count(self.began_ms)

    def __call__(self, topic: str, *records: tuple[bytes | None, bytes | None], timestamp: int | None = None):
        failures = []
        for key, value in records:
            self._producer.produce(
                topic,
                key=key,
                value=value,
                timestamp=timestamp or next(self._clock),
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
            self._producer.poll(0)
        assert self._producer.flush(30) == 0
        assert failures == []


@pytest.fixture(scope="module")
def broker():
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture(scope="module")
def feed(broker: EmbeddedKafka):
    create_topic(broker.bootstrap, PLAYERS, PARTITIONS)  # a compacted one would refuse the record without a key
    create_topics(broker.bootstrap, sample.TOPICS, PARTITIONS)
    feed = Feed(broker.bootstrap)
    feed(PLAYERS, *sample.player_records())
    feed(PRODUCTS, *sample.product_records())
    feed(SCORES, *sample.score_records())
    return feed


@pytest.fixture(scope="module")
def processor(broker: EmbeddedKafka, feed: Feed, tmp_path_factory: pytest.TempPathFactory):
    options = ["--max-offsets", "4000", "--heartbeat-interval-ms", "500"]
    processor = ProcessorProcess(
        "examples.leaderboard.topology", broker.bootstrap, tmp_path_factory.mktemp("processor"), *options
    )
    processor.start()
    yield processor
    if processor.is_running:
        assert processor.stop() == 0, processor.log_tail()


@pytest.fixture
def board(broker: EmbeddedKafka, processor: ProcessorProcess):
    """Wait until a product's board has something in it; return the board."""

    def board(product: int, scores: list[Any]):
        def found():
            assert processor.is_running, processor.log_tail()
            value = store_of(messages(broker.bootstrap, CHANGELOG)).get(str(product).encode())
            entries = [] if value is None else json.loads(value)
            return entries if [entry["score"] for entry in entries] == scores else []

        return poll_until(found, BATCH_S, f"scores {scores} on the board of product {product}")

    return board


@pytest.fixture
def dead_letters(broker: EmbeddedKafka, processor: ProcessorProcess):
    """Wait for dead letters of a source topic from an offset mark on; return them."""

    def dead_letters(count: int, since: set[Place]):
        def found():
            assert processor.is_running, processor.log_tail()
            letters = messages(broker.bootstrap, DEAD_LETTERS)[:]
            new = [letter for letter in letters if (letter.partition(), letter.offset()) not in since]
            return new if len(new) >= count else []

        return poll_until(found, BATCH_S, f"{count} dead letters")

    return dead_letters


def marks(broker: EmbeddedKafka):
    return {(letter.partition(), letter.offset()) for letter in messages(broker.bootstrap, DEAD_LETTERS)}


def scores_in(broker: EmbeddedKafka):
    """The valid scores of the source topic, each with its place."""
    for message in messages(broker.bootstrap, SCORES):
        try:
            event = json.loads(message.value())
            product, player, score = event["product_id"], event["player_id"], event["score"]
            valid = all(isinstance(number, int | float) and number is not True for number in (product, player, score))
        except (ValueError, TypeError, KeyError):
            continue
        if valid:
            place = (message.timestamp()[1], message.partition(), message.offset())
            yield Score(*place, int(product), int(player), float(score))


@pytest.mark.feature("compacted-changelog-store")
def test_the_sample_gives_exactly_the_expected_changelog(
    broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed
):
    processor.wait_for("batch committed")
    found = poll_until(lambda: messages(broker.bootstrap, CHANGELOG), BATCH_S, "the changelog")
    assert sorted(message.key() for message in found) == [b"1", b"6"]
    assert store_of(found) == leaderboards(scores_in(broker), sample.PLAYERS, sample.PRODUCTS)
    scores = list(scores_in(broker))
    for message in found:
        assert message.partition() == partition_for(message.key(), PARTITIONS)
        latest = max(score.timestamp_ms for score in scores if str(score.product_id).encode() == message.key())
        assert message.timestamp()[1] == latest
    assert messages(broker.bootstrap, DEAD_LETTERS) == []


@pytest.mark.feature("commits-topic-input")
def test_the_commits_topic_says_what_is_included_and_goes_on_while_idle(
    broker: EmbeddedKafka, processor: ProcessorProcess
):
    topic = commits_topic(application_id)
    found = poll_until(
        lambda: [c for c in commits(broker.bootstrap, topic) if c.idle] and list(commits(broker.bootstrap, topic)),
        BATCH_S,
        "an idle commit",
    )
    client = admin(broker.bootstrap, "tests")
    for commit in (found[0], found[-1]):
        assert (commit.store, commit.batch_id) == (STORE, 0)
        sources = {(end.topic, end.partition): end.offset for end in commit.source_ends}
        changelog = {(end.topic, end.partition): end.offset for end in commit.changelog_ends}
        assert Counter(topic for topic, _ in sources) == dict.fromkeys((SCORES, PLAYERS, PRODUCTS), PARTITIONS)
        assert sources == last_stable_offsets(client, list(sources))
        assert changelog == last_stable_offsets(client, [(CHANGELOG, partition) for partition in range(PARTITIONS)])
    assert not found[0].idle
    assert len({commit.query_id for commit in found}) == 1


@pytest.mark.feature("records-t-used")
def test_malformed_and_unknown_records_become_dead_letters_and_nothing_stops(
    broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed, board: Board, dead_letters: DeadLetters
):
    before = marks(broker)
    scores = {
        b"oops": "not_json",
        b'{"score":1,"product_id":1}': "missing_field",
        b'{"score":"1","product_id":1,"player_id":1}': "wrong_type",
        b'{"score":1,"product_id":true,"player_id":1}': "wrong_type",
        b'{"score":NaN,"product_id":1,"player_id":1}': "wrong_type",
        b'{"score":1,"product_id":1,"player_id":1.5}': "wrong_type",
        None: "null_value",
        sample.score_event(1, 99, 1)[1]: "unknown_player",
        sample.score_event(99, 1, 1)[1]: "unknown_product",
    }
    feed(SCORES, *((b"a key", value) for value in scores))
    rows = {(None, b'{"id":9,"name":"No Key"}'): "null_key", (b"x", b'{"id":9,"name":"No Id"}'): "wrong_type"}
    rows[b"9", b'{"id":9}'] = "missing_field"
    feed(PLAYERS, *rows)
    feed(PRODUCTS, (b"9", b'{"id":9,"name":7}'))
    feed(SCORES, sample.score_event(1, 1, 5000))
    board(1, [5000, 4000, 2000])

    expected = Counter((SCORES, b"a key", value, reason) for value, reason in scores.items())
    expected += Counter((PLAYERS, key, value, reason) for (key, value), reason in rows.items())
    expected[PRODUCTS, b"9", b'{"id":9,"name":7}', "wrong_type"] += 1
    letters = dead_letters(sum(expected.values()), before)
    told = [headers(letter) for letter in letters]
    assert expected == Counter(
        (header["source_topic"], letter.key(), letter.value(), header["reason"])
        for letter, header in zip(letters, told, strict=True)
    )
    # The place in the headers is where the original stands.
    originals = {
        (topic, message.partition(), message.offset()): (message.key(), message.value())
        for topic in (SCORES, PLAYERS, PRODUCTS)
        for message in messages(broker.bootstrap, topic)
    }
    for letter, header in zip(letters, told, strict=True):
        place = (header["source_topic"], int(header["source_partition"]), int(header["source_offset"]))
        assert originals[place] == (letter.key(), letter.value())
        assert letter.partition() == place[1] % PARTITIONS
        assert header["detail"]
    counted = Counter()
    for batch in processor.events("batch committed"):
        counted += Counter(batch["dead_letters"])
    assert counted == Counter(header["reason"] for header in told)


def test_renames_count_for_later_scores_and_deletes_make_unknown(
    broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed, board: Board, dead_letters: DeadLetters
):
    feed(PRODUCTS, sample.named_row(10, "Tetris"))
    feed(PLAYERS, sample.named_row(20, "Ann"))
    feed(SCORES, sample.score_event(10, 20, 100))
    board(10, [100])
    feed(PLAYERS, sample.named_row(20, "Anna"))
    feed(PRODUCTS, sample.named_row(10, "Tetris 2"))
    feed(SCORES, sample.score_event(10, 20, 90))
    expected = [
        {"playerId": 20, "productId": 10, "playerName": "Ann", "gameName": "Tetris", "score": 100},
        {"playerId": 20, "productId": 10, "playerName": "Anna", "gameName": "Tetris 2", "score": 90},
    ]
    assert board(10, [100, 90]) == expected

    before = marks(broker)
    feed(PLAYERS, (b"20", None))
    feed(SCORES, sample.score_event(10, 20, 300))
    assert [headers(letter)["reason"] for letter in dead_letters(1, before)] == ["unknown_player"]
    feed(PRODUCTS, (b"10", None))
    feed(SCORES, sample.score_event(10, 1, 300))
    reasons = [headers(letter)["reason"] for letter in dead_letters(2, before)]
    assert sorted(reasons) == ["unknown_player", "unknown_product"]
    # Nothing is tried again: a player who comes back starts with later scores.
    feed(PRODUCTS, sample.named_row(10, "Tetris 3"))
    feed(PLAYERS, sample.named_row(20, "Ann again"))
    feed(SCORES, sample.score_event(10, 20, 80))
    again = {"playerId": 20, "productId": 10, "playerName": "Ann again", "gameName": "Tetris 3", "score": 80}
    assert board(10, [100, 90, 80]) == [*expected, again]


def test_events_are_ordered_by_time_and_see_the_table_as_of_their_batch(feed: Feed, board: Board):
    feed(PRODUCTS, sample.named_row(11, "Pong"), sample.named_row(13, "Breakout"))
    feed(PLAYERS, sample.named_row(21, "Bo"))
    early = feed.began_ms - 1_000_000
    feed(SCORES, sample.score_event(11, 21, 1))
    board(11, [1])
    feed(SCORES, *[sample.score_event(11, 21, 9)] * 3, timestamp=early + 9)
    board(11, [9, 9, 9])
    feed(PLAYERS, sample.named_row(21, "Bob"))
    feed(SCORES, sample.score_event(13, 21, 1))
    board(13, [1])
    # Earlier by its timestamp, though later by arrival: takes the first place, with the name known now.
    feed(SCORES, sample.score_event(11, 21, 9), timestamp=early + 1)

    def names():
        return [entry["playerName"] for entry in board(11, [9, 9, 9])] == ["Bob", "Bo", "Bo"]

    assert poll_until(names, BATCH_S, "the earlier score in front")


def test_numbers_in_every_form_are_the_same_ids(feed: Feed, board: Board):
    feed(PRODUCTS, (b"12.0", b'{"id":12.0,"name":"Zelda"}'))
    feed(PLAYERS, (b"22", b'{"id":2.2e1,"name":"Zo\xc3\xab"}'))
    feed(SCORES, (None, b'{"score":12.5,"product_id":12,"player_id":22.0}'))
    feed(SCORES, (None, b'{"score":4000.0,"product_id":12.0,"player_id":22}'))
    feed(SCORES, (None, b'{"score":1e1,"product_id":1.2e1,"player_id":2.2e1}'))
    entries = board(12, [4000, 12.5, 10])
    assert {(entry["playerId"], entry["productId"], entry["playerName"]) for entry in entries} == {(22, 12, "Zoë")}
    assert [repr(entry["score"]) for entry in entries] == ["4000", "12.5", "10"]


def test_a_row_written_before_a_score_is_known_to_it(broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed):
    before = marks(broker)
    for number in range(200, 230):
        feed(PRODUCTS, sample.named_row(number, f"Game {number}"))
        feed(PLAYERS, sample.named_row(number, f"Player {number}"))
        feed(SCORES, sample.score_event(number, number, number))
    wanted = {str(number).encode() for number in range(200, 230)}
    poll_until(
        lambda: wanted <= store_of(messages(broker.bootstrap, CHANGELOG)).keys() or marks(broker) != before,
        BATCH_S,
        "all boards",
    )
    assert marks(broker) == before


@pytest.mark.feature("driver-dies-loses")
def test_a_killed_driver_loses_and_doubles_nothing(broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed):
    players = {number: f"Player {number}" for number in range(1000, 1040)}
    products = {number: f"Game {number}" for number in range(1000, 1050)}
    feed(PLAYERS, *(sample.named_row(*row) for row in players.items()))
    feed(PRODUCTS, *(sample.named_row(*row) for row in products.items()))
    rng = random.Random(1)
    events = [
        sample.score_event(rng.choice(list(products)), rng.choice(list(players)), rng.randrange(50_000) / 2)
        for _ in range(20_000)
    ]
    earlier = len(processor.events("batch committed"))
    feed(SCORES, *events)
    processor.wait_for("batch committed", earlier + 3)
    jvms = processor.jvm_pids()
    processor.kill()
    poll_until(lambda: not any(is_alive(pid) for pid in jvms), 30.0, "the JVM's end")

    written = len(messages(broker.bootstrap, CHANGELOG))
    processor.start()

    scores = [score for score in scores_in(broker) if score.product_id in products]
    assert len(scores) == 20_000
    expected = leaderboards(scores, players, products)

    def is_complete():
        assert processor.is_running, processor.log_tail()
        store = store_of(messages(broker.bootstrap, CHANGELOG))
        return {key: store.get(key) for key in expected} == expected

    poll_until(is_complete, 90.0, "the boards of 20,000 scores")
    assert len(messages(broker.bootstrap, CHANGELOG)) > written, "the kill came too late to be in the middle"
    by_key = {}
    for message in messages(broker.bootstrap, CHANGELOG):
        if message.key() in expected:
            best = sum(entry["score"] for entry in json.loads(message.value()))
            assert best >= by_key.get(message.key(), 0), "a board stepped back"
            by_key[message.key()] = best


def stop_after_a_record(processor: ProcessorProcess, feed: Feed, board: Board):
    feed(SCORES, sample.score_event(6, 1, 90_000))
    board(6, [90_000, 9000, 2500])
    assert processor.stop() == 0, processor.log_tail()


def test_signals_stop_it_after_the_batch_with_exit_code_0(processor: ProcessorProcess, feed: Feed, board: Board):
    stop_after_a_record(processor, feed, board)
    (asked,) = processor.events("stopping after the batch under way")
    assert asked["signal"] in ("SIGINT", "SIGTERM")
    assert not processor.events("processor stopped")


@pytest.mark.feature("batch-runs-again")
def test_a_batch_that_the_sink_had_committed_is_skipped_when_spark_runs_it_again(
    broker: EmbeddedKafka, processor: ProcessorProcess, feed: Feed, board: Board
):
    if processor.is_running:
        stop_after_a_record(processor, feed, board)
    # A crash in the gap between the sink's commit and Spark's leaves just this: a batch planned, not yet committed.
    directory = processor.checkpoint / application_id / STORE
    last = max(batch_ids(directory / "offsets"))
    remove(directory / "commits", last)
    before = len(messages(broker.bootstrap, CHANGELOG))

    processor.start()
    replayed = processor.wait_for("batch committed")[0]
    assert (replayed["batch_id"], replayed["records"], replayed["skipped_partitions"]) == (last, 0, 1)
    assert len(messages(broker.bootstrap, CHANGELOG)) == before
    newest = list(commits(broker.bootstrap, commits_topic(application_id)))[-1]
    assert newest.batch_id == last
    assert processor.stop() == 0


def batch_ids(directory: Path):
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


def remove(directory: Path, batch_id: int):
    """Remove a log's entry, with the checksum next to it."""
    for path in list(directory.iterdir()):
        if path.name.strip(".").split(".")[0] == str(batch_id):
            path.unlink()
