"""Measures how soon after its production an event can be read: at the active, at the standby, through the router.

Each event has its own key, outside of the keys that loads ask for. Events that are not visible yet are read again and
again, in batches: every 2 ms at first, which is the resolution of short times, then less and less often, with pauses of
1/10 of the time waited, 100 ms at most. Reads take processor time from the servers that they measure: with pauses of
1/20 they took a third of two cores.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.measure import Result, Stage, quantiles
from statehouse.contract.partitioning import partition_for
from statehouse.kafka import clients

_ACTIVE: Final = "at the active"
_STANDBY: Final = "at the standby"
_ANYWHERE: Final = "through the router / any instance"
_FIRST: Final = 90_000_000
# Events per read: the oldest that are not visible, because events become visible in order. More once one is visible.
_ASKED: Final = 8
_ASKED_MAX: Final = 50
_PAUSE_S: Final = 0.002
_PAUSE_MAX_S: Final = 0.1
_PAUSE_SHARE: Final = 1 / 10
_PATIENCE_S: Final = 90.0


@dataclass
class Watched:
    """The events that a node (None: the router) has to show: `sent` has those not visible yet, `took_s` the others."""

    node: str | None
    role: str
    sent: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    is_complete: bool = False


def freshness(stage: Stage) -> Iterator[Result]:
    """Produce events at a steady rate, and look for each at every place; the first ones are a warm-up."""
    anywhere = Watched(None, _ANYWHERE)
    places = {partition: [anywhere] for partition in range(stage.shape.partitions)}
    watched: dict[tuple[str | None, str], Watched] = {(None, _ANYWHERE): anywhere}
    for copy in stage.servers.settled_copies():
        role = _ACTIVE if copy.active else _STANDBY
        places[copy.partition].append(watched.setdefault((copy.node, role), Watched(copy.node, role)))
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
    for role in (_ACTIVE, _STANDBY, _ANYWHERE):
        of_role = [each.took_s for each in watched.values() if each.role == role]
        took_s = [took for each in of_role for key, took in each.items() if key >= key_of(begin)]
        if of_role:  # a single node has no standbys
            yield Result(f"Event produced to visible {role}", quantiles(took_s))


def _send(stage: Stage, places: dict[int, list[Watched]], values: dict[str, bytes]) -> None:
    producer = clients.producer(stage.servers.bootstrap, "bench", **{"linger.ms": 0})
    for partition in places:  # connects to the brokers, and gets the producer id that idempotence needs
        producer.produce(
            stage.servers.source_topic, key=_opening(partition, len(places)), value=b"", partition=partition
        )
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


def _opening(partition: int, count: int) -> bytes:
    """Return a key of a partition: a store that follows the topic itself refuses to answer for misplaced ones."""
    keys = (f"opening-{number}".encode() for number in itertools.count())
    return next(key for key in keys if partition_for(key, count) == partition)


def _look(stage: Stage, watched: Watched, values: dict[str, bytes]) -> None:
    """Read until every event that was sent is visible."""
    give_up_at = time.monotonic() + stage.load.warm_up_s + stage.load.freshness_s + _PATIENCE_S
    asked_max = _ASKED
    while not watched.is_complete or watched.sent:
        asked = list(watched.sent)[:asked_max]
        found = stage.servers.read(watched.node, asked) if asked else []
        now = time.monotonic()
        seen = [key for key, value in zip(asked, found, strict=True) if value == values[key]]
        for key in seen:
            watched.took_s[key] = now - watched.sent.pop(key)
        asked_max = _ASKED_MAX if seen else _ASKED
        if now > give_up_at:
            raise BenchFailure(
                f"{watched.node or 'the router'} doesn't show {len(watched.sent)} events, {asked[:3]} among them"
            )
        if not seen:
            waited_s = now - watched.sent[asked[0]] if asked else 0.0
            threading.Event().wait(min(_PAUSE_MAX_S, max(_PAUSE_S, _PAUSE_SHARE * waited_s)))
