"""The key-value store: the latest value of each key."""

from __future__ import annotations

from collections.abc import Sequence

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import Applied, ChangelogRecord, PageBuilder, RangePage
from query_service.stores.engine_store import EngineStore
from query_service.stores.walk import Walk
from statehouse.paging import KeyRange

_FAMILY = "default"


class KeyValueStore(EngineStore):
    """Keys and values as they are in the changelog, in unsigned byte order of the keys."""

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        """Write the values, and delete the keys whose value is None."""
        self._engine.write({_FAMILY: [(record.key, record.value) for record in records]}, checkpoint)
        return Applied(stream_time_ms=checkpoint.stream_time_ms)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if the store does not hold the key."""
        return self._engine.get(_FAMILY, key)

    def scan(self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk) -> RangePage[tuple[bytes, bytes]]:
        """Return entries of a range as they are at one moment, in the range's order.

        At most `limit` entries, and at most `max_bytes` of keys and values unless the first entry is larger.
        """
        page = PageBuilder[tuple[bytes, bytes]](limit, max_bytes)
        with self._engine.view([_FAMILY]) as view:
            for key, value in walk.over(view.entries(_FAMILY, keys.start, keys.stop, reverse=keys.reverse)):
                if not page.add((key, value), len(key) + len(value)):
                    return page.page(more=True)
        return page.page(more=False)

    def approximate_count(self) -> int:
        """Return the engine's estimate of the number of keys."""
        return self._engine.approximate_count(_FAMILY)

    def exact_count(self, walk: Walk) -> int:
        """Walk all keys and return their number."""
        with self._engine.view([_FAMILY]) as view:
            return sum(1 for _ in walk.over(view.entries(_FAMILY, b"", None, reverse=False)))
