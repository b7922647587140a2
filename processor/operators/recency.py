"""Which entries a bounded store keeps: the last updated ones (LRU); pure.

Kafka Streams' in-memory LRU map counts reads as uses. Here reads happen on query nodes, so recency is that of updates.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from processor.operators.aggregators import Aggregator
from processor.operators.json_text import compact_json
from processor.operators.order import Position
from statehouse.errors import ConfigurationError


class Update(NamedTuple):
    """A row of a store: a None value deletes."""

    key: bytes
    value: bytes | None
    timestamp_ms: int | None


class Place(NamedTuple):
    """Where an update stands among those of its batch: -1, or "", for what its row doesn't say."""

    timestamp_ms: int
    partition: int
    offset: int
    topic: str

    @classmethod
    def of(cls, timestamp_ms: int | None, topic: str | None, partition: int | None, offset: int | None) -> Self:
        """Return the place that a row's columns tell, null for what it doesn't say."""
        time, number, at = (-1 if each is None else each for each in (timestamp_ms, partition, offset))
        return cls(time, number, at, topic or "")


class _Keyed(Protocol):
    """An update of a key; the keys of a batch are of one type."""

    @property
    def key(self) -> Any:  # noqa: ANN401 - as the protocol says
        ...


_Change = TypeVar("_Change", bound=_Keyed)


def in_order(placed: Iterable[tuple[Place, _Change]]) -> list[tuple[Place, _Change]]:
    """Return a batch's updates in the order in which they apply: by time, then by where they came from.

    It doesn't depend on the order they are given in, since a batch that is run again must give the same and its rows
    come from a shuffle. Updates of different keys that share a place are in the order of their keys.

    Raises:
        ConfigurationError: two updates of a key share a place and say different things, so that nothing tells which
            of them is the last.

    """
    ordered = sorted(placed, key=lambda each: (each[0], each[1].key))
    for (place, update), (next_place, follower) in pairwise(ordered):
        if place == next_place and update.key == follower.key and update != follower:
            raise ConfigurationError(
                f"key {update.key!r} has two updates in one batch and nothing tells which is the last: a frame of "
                "events must keep the columns topic, partition and offset of its source when it has max_entries or "
                "suppress; an aggregate must be grouped by the store's key alone"
            )
    return ordered


def folded(
    entries: Mapping[bytes, str], events: Iterable[tuple[Place, Update]], aggregator: Aggregator, max_entries: int
) -> tuple[list[Update], dict[bytes, str]]:
    """Aggregate a batch's events, in their order, in a store of bounded size; return what to publish, and the entries.

    An event's value is its row as JSON text, an entry its aggregate as such, the least recently updated entry first. A
    displaced entry's aggregate is forgotten with it. What is published is as of `bounded`.
    """
    aggregates = dict(entries)
    updates = []
    for place, event in events:
        # What `bounded` will have displaced before this event, it must not find.
        state = aggregates.pop(event.key, None)
        row = json.loads(event.value or "{}")
        position = Position(place.timestamp_ms, place.partition, place.offset)
        after = aggregator.add(None if state is None else json.loads(state), row, position)
        value = None if after is None else aggregator.render(after)
        rendered = None if value is None else compact_json(value).encode()
        updates.append(Update(event.key, rendered, event.timestamp_ms))
        if rendered is not None:
            aggregates[event.key] = json.dumps(after, separators=(",", ":"))
        if len(aggregates) > max_entries:
            del aggregates[next(iter(aggregates))]
    publish, _ = bounded(entries, updates, max_entries)
    return publish, aggregates


def bounded(recency: Iterable[bytes], updates: Iterable[Update], max_entries: int) -> tuple[list[Update], list[bytes]]:
    """Apply a batch's updates in their order; return what to publish, and the keys now kept.

    `recency` and the keys returned are the store's, the least recently updated first. What is published leaves the
    store with exactly these keys: the last update of each key that is kept, and a tombstone for each that was there
    before and is not any more, deleted or displaced. A key that came and went within the batch is not published.
    """
    kept = OrderedDict.fromkeys(recency)
    was_there: dict[bytes, bool] = {}
    last: dict[bytes, Update] = {}
    for update in updates:
        was_there.setdefault(update.key, update.key in kept)
        last[update.key] = update
        if update.value is None:
            kept.pop(update.key, None)
        else:
            kept[update.key] = None
            kept.move_to_end(update.key)
        while len(kept) > max_entries:
            displaced, _ = kept.popitem(last=False)
            was_there.setdefault(displaced, True)
            last[displaced] = Update(displaced, None, update.timestamp_ms)
    publish = [update for key, update in last.items() if update.value is not None or was_there[key]]
    return publish, list(kept)
