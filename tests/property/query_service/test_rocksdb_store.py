"""The RocksDB store against a plain dictionary: batches, reopenings, scans both ways."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from query_service.checkpoint import Checkpoint
from query_service.stores.rocksdb import RocksDBKeyValueStore
from statehouse.paging import KeyRange

KEY = st.binary(max_size=3)
NO_LIMIT = 10**9


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = RocksDBKeyValueStore(self.directory / "db")
        self.model: dict[bytes, bytes] = {}
        self.place: Checkpoint | None = None

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(records=st.lists(st.tuples(KEY, st.none() | st.binary(max_size=4)), max_size=10))
    def apply(self, records: list[tuple[bytes, bytes | None]]) -> None:
        position = (0 if self.place is None else self.place.position) + len(records)
        self.place = Checkpoint("t", "id", position, 1)
        self.store.apply(records, self.place)
        for key, value in records:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = RocksDBKeyValueStore(self.directory / "db")

    @rule(key=KEY)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.model.get(key)

    @rule(start=KEY, stop=st.none() | KEY, reverse=st.booleans(), limit=st.integers(1, 5))
    def scan(self, start: bytes, stop: bytes | None, reverse: bool, limit: int) -> None:
        page = self.store.scan(KeyRange(start, stop, reverse), limit, NO_LIMIT)
        expected = sorted(
            ((k, v) for k, v in self.model.items() if k >= start and (stop is None or k < stop)), reverse=reverse
        )
        assert page.entries == expected[:limit]
        assert page.more == (len(expected) > limit)

    @rule(max_bytes=st.integers(1, 20))
    def scan_by_bytes(self, max_bytes: int) -> None:
        page = self.store.scan(KeyRange(), NO_LIMIT, max_bytes)
        expected = sorted(self.model.items())
        assert page.entries == expected[: len(page.entries)]
        assert page.more == (len(expected) > len(page.entries))
        size = sum(len(key) + len(value) for key, value in page.entries)
        assert size <= max_bytes or len(page.entries) == 1

    @invariant()
    def place_and_count(self) -> None:
        assert self.store.checkpoint() == self.place
        assert self.store.exact_count() == len(self.model)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
