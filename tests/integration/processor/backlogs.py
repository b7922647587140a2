"""Events that wait for an application, as many as are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

from examples.leaderboard import sample
from examples.leaderboard.topology import PLAYERS, PRODUCTS, SCORES
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import create_topics
from tests.integration.processor import counters
from tests.support.kafka import PlacedRecord, create_topic, produce, produce_placed

_PARTITIONS: Final = 4
_KEYS, _PLAYERS, _PRODUCTS = 5_000, 2_000, 500


def fill(broker: EmbeddedKafka, topology: str, count: int) -> None:
    """Write so many events that an application, the counters or the leaderboard, has not read yet."""
    if topology.endswith("counters"):
        create_topic(broker.bootstrap, counters.EVENTS, _PARTITIONS)
        _in_parts(broker, counters.EVENTS, _numbers(count))
        return
    create_topics(broker.bootstrap, sample.TOPICS, _PARTITIONS)
    produce(broker.bootstrap, PLAYERS, [sample.named_row(player, f"Player {player}") for player in range(_PLAYERS)])
    produce(broker.bootstrap, PRODUCTS, [sample.named_row(game, f"Game {game}") for game in range(_PRODUCTS)])
    _in_parts(broker, SCORES, _scores(count))


def _in_parts(broker: EmbeddedKafka, topic: str, records: Iterator[PlacedRecord]) -> None:
    """Write no more at a time than a producer's queue takes."""
    while part := list(islice(records, 50_000)):
        produce_placed(broker.bootstrap, topic, part)


def _numbers(count: int) -> Iterator[PlacedRecord]:
    rng = random.Random(1)
    for nth in range(count):
        yield nth % _PARTITIONS, f"key-{rng.randrange(_KEYS)}".encode(), str(rng.randrange(100)).encode(), 0


def _scores(count: int) -> Iterator[PlacedRecord]:
    rng = random.Random(1)
    for nth in range(count):
        key, value = sample.score_event(rng.randrange(_PRODUCTS), rng.randrange(_PLAYERS), rng.randrange(50_000))
        yield nth % _PARTITIONS, key, value, 0
