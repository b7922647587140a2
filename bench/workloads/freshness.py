"""How long after it was produced an event can be read, at the active and at the standby.

Each event is a key of its own, outside of the keys that loads ask for. What has not been seen yet is asked for again
and again, in batches, of the nodes themselves; that is the resolution of the times, some milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.measure import Result, Stage, quantiles
from statehouse.kafka import clients
from statehouse.partitioning import partition_for

_FIRST: Final = 90_000_000
_OPENING: Final = b"opening"
# Of what has not been seen, the oldest are asked for: an event is seen after those before it.
_ASKED_MAX: Final = 50
_PAUSE_S: Final = 0.002
_PATIENCE_S: Final = 90.0


@dataclass
class Watched:
    """The events that one node has to show in one role: when they were sent, and how long they took to be seen."""

    node: str
    is_active: bool
    sent: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    is_complete: bool = False


def freshness(stage: Stage) -> Iterator[Result]:
    """Produce events at a steady rate, and look for each at both of its copies; the first ones are to warm up."""
    places: dict[int, list[Watched]] = {}
    watched: dict[tuple[str, bool], Watched] = {}
    for copy in stage.servers.settled_copies():
        place = watched.setdefault((copy.node, copy.active), Watched(copy.node, copy.active))
        places.setdefault(copy.partition, []).append(place)
    version = int(time.time()) & 0xFFFF_FFFF
    begin = _FIRST + int(stage.load.warm_up_s * stage.load.events_per_s)
    end = begin + int(stage.load.freshness_s * stage.load.events_per_s)
    values = {key_of(number): value_of(number, version).encode() for number in range(_FIRST, end)}
    with ThreadPoolExecutor(len(watched)) as pool:
        looking = [pool.submit(_look, stage, each, values) for each in watched.values()]
        _send(stage, places, values)
        for each in watched.values():
            each.is_complete = True
        for future in looking:
            future.result()
    for name, is_active in (("active", True), ("standby", False)):
        of_role = [each.took_s for each in watched.values() if each.is_active is is_active]
        took_s = [took for each in of_role for key, took in each.items() if key >= key_of(begin)]
        if of_role:  # a single node has no standbys
            yield Result(f"Event produced to visible at the {name}", quantiles(took_s))


def _send(stage: Stage, places: dict[int, list[Watched]], values: dict[str, bytes]) -> None:
    producer = clients.producer(stage.servers.bootstrap, "bench", **{"linger.ms": 0})
    for partition in places:  # connects to the brokers, and gets the id that makes it idempotent
        producer.produce(stage.servers.source_topic, key=_OPENING, value=b"", partition=partition)
    producer.flush(_PATIENCE_S)
    due = time.monotonic()
    for key, value in values.items():
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / stage.load.events_per_s
        partition = partition_for(key.encode(), stage.shape.partitions)
        sent_at = time.monotonic()
        producer.produce(stage.servers.source_topic, key=key.encode(), value=value, partition=partition)
        producer.poll(0)
        for place in places[partition]:
            place.sent[key] = sent_at
    producer.flush(_PATIENCE_S)


def _look(stage: Stage, watched: Watched, values: dict[str, bytes]) -> None:
    """Look until all is seen that was sent."""
    give_up_at = time.monotonic() + stage.load.warm_up_s + stage.load.freshness_s + _PATIENCE_S
    while not watched.is_complete or watched.sent:
        asked = list(watched.sent)[:_ASKED_MAX]
        found = stage.servers.read(watched.node, asked) if asked else []
        now = time.monotonic()
        for key, value in zip(asked, found, strict=True):
            if value == values[key]:
                watched.took_s[key] = now - watched.sent.pop(key)
        if now > give_up_at:
            raise BenchFailure(f"{watched.node} doesn't show {len(watched.sent)} events, {asked[:3]} among them")
        threading.Event().wait(_PAUSE_S)
