"""Which entries a bounded store keeps: the last updated ones (LRU); pure.

Kafka Streams' in-memory LRU map counts reads as uses too. Here query nodes do the reads, so only updates count.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from processor.operators.aggregators import Aggregator
from processor.operators.order import RecordPosition
from processor.operators.workers.json_text import compact_json
from statehouse.errors import ConfigurationError


class StoreUpdate(NamedTuple):
    """A row of a store; a None value deletes its key."""

    key: bytes
    value: bytes | None
    timestamp_ms: int | None


class UpdateOrder(NamedTuple):
    """The position of an update within its batch; -1 or "" for a column that its row lacks."""

    timestamp_ms: int
    partition: int
    offset: int
    topic: str

    @classmethod
    def of(cls, timestamp_ms: int | None, topic: str | None, partition: int | None, offset: int | None) -> Self:
        """Return the place given by the columns of a row; None for a column that the row lacks."""
        time, number, at = (-1 if each is None else each for each in (timestamp_ms, partition, offset))
        return cls(time, number, at, topic or "")


class _Keyed(Protocol):
    """An update of a key; the keys of a batch are of one type."""

    @property
    def key(self) -> Any:  # noqa: ANN401 - as the protocol says
        ...


_Change = TypeVar("_Change", bound=_Keyed)


def in_order(placed: Iterable[tuple[UpdateOrder, _Change]]) -> list[tuple[UpdateOrder, _Change]]:
    """Return the updates of a batch in the order in which they apply: by time, then by source.

    The result doesn't depend on the given order: rows come from a shuffle, and a batch that runs again must give the
    same result. Updates of different keys at the same place are sorted by key.

    Raises:
        ConfigurationError: two different updates of a key have the same place, so that nothing tells which is the last.

    """
    ordered = sorted(placed, key=lambda each: (each[0], each[1].key))
    for (order, update), (next_order, follower) in pairwise(ordered):
        if order == next_order and update.key == follower.key and update != follower:
            raise ConfigurationError(
                f"key {update.key!r} has two updates in one batch and nothing tells which is the last: a frame of "
                "events must keep the columns topic, partition and offset of its source when it has max_entries or "
                "suppress; an aggregate must be grouped by the store's key alone"
            )
    return ordered


def folded(
    entries: Mapping[bytes, str],
    events: Iterable[tuple[UpdateOrder, StoreUpdate]],
    aggregator: Aggregator,
    max_entries: int,
) -> tuple[list[StoreUpdate], dict[bytes, str]]:
    """Aggregate the events of a batch, in order, in a bounded store; return the updates to publish, and the entries.

    The value of an event is its row as JSON text; the value of an entry is its aggregate as JSON text. Entries are
    sorted, the least recently updated first. A displaced entry loses its aggregate. `bounded` says which updates are
    published.
    """
    aggregates = dict(entries)
    updates = []
    for order, event in events:
        # `aggregates` must not have an entry that `bounded` displaces before this event.
        state = aggregates.pop(event.key, None)
        row = json.loads(event.value or "{}")
        position = RecordPosition(order.timestamp_ms, order.partition, order.offset)
        after = aggregator.add(None if state is None else json.loads(state), row, position)
        value = None if after is None else aggregator.render(after)
        rendered = None if value is None else compact_json(value).encode()
        updates.append(StoreUpdate(event.key, rendered, event.timestamp_ms))
        if rendered is not None:
            aggregates[event.key] = json.dumps(after, separators=(",", ":"))
        if len(aggregates) > max_entries:
            del aggregates[next(iter(aggregates))]
    publish, _ = bounded(entries, updates, max_entries)
    return publish, aggregates


def bounded(
    recency: Iterable[bytes], updates: Iterable[StoreUpdate], max_entries: int
) -> tuple[list[StoreUpdate], list[bytes]]:
    """Apply the updates of a batch in order; return the updates to publish, and the keys now in the store.

    `recency` and the returned keys are sorted, the least recently updated first. The published updates are the last
    update of each key still in the store, and a tombstone for each key that was in the store before and was deleted or
    displaced. A key that came and went within the batch isn't published.
    """
    kept = OrderedDict.fromkeys(recency)
    was_there: dict[bytes, bool] = {}
    last: dict[bytes, StoreUpdate] = {}
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
            last[displaced] = StoreUpdate(displaced, None, update.timestamp_ms)
    publish = [update for key, update in last.items() if update.value is not None or was_there[key]]
    return publish, list(kept)
