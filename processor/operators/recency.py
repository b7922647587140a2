"""Which entries a bounded store keeps: the last updated ones (LRU); pure.

Kafka Streams' in-memory LRU map counts reads as uses. Here reads happen on query nodes, so recency is that of updates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple


class Update(NamedTuple):
    """A row of a store: a None value deletes."""

    key: bytes
    value: bytes | None
    timestamp_ms: int | None


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
