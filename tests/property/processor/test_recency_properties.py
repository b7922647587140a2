"""A bounded store against a plain model of one: updates applied one by one, evictions immediately."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.workers.recency import StoreUpdate, bounded

_UPDATES = st.builds(
    StoreUpdate,
    key=st.sampled_from([b"%d" % number for number in range(12)]),
    value=st.one_of(st.none(), st.binary(max_size=2)),
    timestamp_ms=st.integers(1, 9),
)


class Model:
    """An LRU map as one would write it."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self.entries: OrderedDict[bytes, bytes] = OrderedDict()

    def apply(self, update: StoreUpdate) -> None:
        if update.value is None:
            self.entries.pop(update.key, None)
            return
        self.entries[update.key] = update.value
        self.entries.move_to_end(update.key)
        if len(self.entries) > self._max_entries:
            self.entries.popitem(last=False)


@pytest.mark.feature("store-whose-partitions")
@given(batches=st.lists(st.lists(_UPDATES, max_size=20), max_size=8), max_entries=st.integers(1, 6))
def test_what_is_published_adds_up_to_the_model(batches: list[list[StoreUpdate]], max_entries: int) -> None:
    model, store, recency = Model(max_entries), dict[bytes, bytes](), list[bytes]()
    for batch in batches:
        before = set(store)
        published, recency = bounded(recency, batch, max_entries)
        for update in batch:
            model.apply(update)
        for update in published:
            if update.value is None:
                assert store.pop(update.key, None) is not None, "no tombstone for what was never there"
            else:
                store[update.key] = update.value
        assert store == dict(model.entries)
        assert recency == list(model.entries)
        assert len(published) == len({update.key for update in published}), "one record a key and batch"
        assert {update.key for update in published} <= before | {update.key for update in batch}
