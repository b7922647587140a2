"""The sketch example, from messages to estimates: Spark keeps the sketches, a custom store answers for them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from word_sketch.sketches import estimate_of, new_sketch, read_sketch
from word_sketch.topology import MESSAGES, STORE, application_id

from statehouse.client import Client
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.integration.processor.support import ProcessorProcess
from tests.support.fleet import ServerProcess
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

# Two starts of Spark. The store itself: tests/integration/query_service/test_custom_stores.py.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

FIRST = [
    ("news", "Spark reads, Spark writes; Spark keeps state."),
    ("news", "A state store keeps what Spark computed"),
    ("sport", "the match, the goal, the end"),
]
SECOND = [("news", "SPARK again"), ("music", "la la la"), ("sport", "the rematch")]


@contextmanager
def serving(bootstrap: str, directory: Path) -> Iterator[Client]:
    """Run a node and a router for the application."""
    common = {"application-id": application_id, "bootstrap": bootstrap}
    node_port, router_port = free_port(), free_port()
    node_options = {"instance-id": "n1", "port": node_port, "state-dir": directory / "state", **common}
    node = ServerProcess("n1", "query_service", node_options, node_port, directory).start()
    router = ServerProcess("router", "router", {"port": router_port, **common}, router_port, directory).start()
    try:
        with Client(f"127.0.0.1:{router_port}") as client:
            yield client
    finally:
        for process in (node, router):
            process.close()


def sketches_of(messages: list[tuple[str, str]]) -> dict[str, bytes]:
    """What the topology must come to. Counters only add up, so that the order of the words is all the same."""
    sketches = defaultdict(new_sketch)
    for channel, text in messages:
        for word in filter(None, re.split(r"\W+", text.lower())):
            sketches[channel].update(word)
    return {channel: sketch.serialize() for channel, sketch in sketches.items()}


def test_words_are_counted_once_and_estimated(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, MESSAGES, 2)
    processor = ProcessorProcess("word_sketch.topology", kafka.bootstrap, tmp_path)
    processor.start()

    def send(messages: list[tuple[str, str]]) -> None:
        produce(kafka.bootstrap, MESSAGES, [(key.encode(), text.encode()) for key, text in messages])

    with serving(kafka.bootstrap, tmp_path) as client:

        def holds(expected: dict[str, bytes]) -> bool:
            try:
                return {entry.key: entry.value for entry in client.scan(STORE)} == expected
            except LookupFailure:
                return False

        try:
            send(FIRST)
            poll_until(lambda: holds(sketches_of(FIRST)), 240, "the sketches of the first messages")
            # A crash in the middle of the words loses and doubles none.
            processor.kill()
            send(SECOND)
            processor.start()
            everything = sketches_of([*FIRST, *SECOND])
            poll_until(lambda: holds(everything), 240, "the sketches of all messages")
        finally:
            processor.stop()

        found = client.query_store(STORE, "news", "estimate", {"item": "spark"}).result
        expected = estimate_of(read_sketch(everything["news"]), "spark")
        assert found == {"estimate": 5, "lower": 5, "upper": 5}
        assert (expected.estimate, expected.lower) == (5, 5)
        assert client.query_store(STORE, "silence", "estimate", {"item": "spark"}).result is None
