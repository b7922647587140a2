"""What stores keep of their records' timestamps; a custom kind keeps what it kept before there were any."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import Applied, ChangelogRecord, RangePage
from query_service.stores.engine import Engine
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.timestamps import NO_TIMESTAMP, Timestamped
from query_service.stores.walk import Walk
from statehouse.contract.paging import KeyRange

AT = Checkpoint("t", "id", 1, 1)


class Untouched(KeyValueStore):
    """Adds something, and leaves the rest as it is."""

    def size(self) -> int:
        return self.exact_count(Walk())


class OwnWrites(KeyValueStore):
    """Writes to the engine itself, in the family that the inherited methods read."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.mine = engine

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        self.mine.write({"default": [(record.key, b"<%b>" % (record.value or b"")) for record in records]}, checkpoint)
        return Applied()


class OwnReads(KeyValueStore):
    """Shows values in upper case."""

    def get(self, key: bytes) -> bytes | None:
        value = super().get(key)
        return value and value.upper()


class OwnScans(KeyValueStore):
    """Shows entries in upper case."""

    def scan(self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk) -> RangePage[tuple[bytes, bytes]]:
        page = super().scan(keys, limit, max_bytes, walk)
        return RangePage([(key, value.upper()) for key, value in page.entries], page.more)


class Filtering(KeyValueStore):
    """Drops what is empty, and has the rest written as it always is."""

    keeps_timestamps = True

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        return super().apply([record for record in records if record.value != b""], checkpoint)


class OwnTimes(KeyValueStore):
    """Reads single keys by its own code, of entries as they are written by default."""

    def get_with_timestamp(self, key: bytes) -> Timestamped | None:
        found = super().get_with_timestamp(key)
        return None if found is None else (found[0], found[1] + 1)


@pytest.mark.feature("changelog-record-timestamp")
@pytest.mark.parametrize(
    ("kind", "got", "scanned", "in_engine"),
    [
        (KeyValueStore, (b"v", 5), (b"v", 5), b"\0\0\0\0\0\0\0\5v"),
        (Untouched, (b"v", 5), (b"v", 5), b"\0\0\0\0\0\0\0\5v"),
        (Filtering, (b"v", 5), (b"v", 5), b"\0\0\0\0\0\0\0\5v"),
        (type("Finer", (Filtering,), {}), (b"v", 5), (b"v", 5), b"\0\0\0\0\0\0\0\5v"),
        (type("FinerWrites", (OwnWrites, Filtering), {}), (b"<v>", NO_TIMESTAMP), (b"<v>", NO_TIMESTAMP), b"<v>"),
        (OwnWrites, (b"<v>", NO_TIMESTAMP), (b"<v>", NO_TIMESTAMP), b"<v>"),
        (OwnReads, (b"V", NO_TIMESTAMP), (b"v", NO_TIMESTAMP), b"v"),
        (OwnScans, (b"v", NO_TIMESTAMP), (b"V", NO_TIMESTAMP), b"v"),
        (OwnTimes, (b"v", 6), (b"v", 5), b"\0\0\0\0\0\0\0\5v"),
        (type("Deeper", (OwnWrites,), {}), (b"<v>", NO_TIMESTAMP), (b"<v>", NO_TIMESTAMP), b"<v>"),
    ],
)
def test_a_kind_with_methods_of_its_own_reads_what_it_has_written(
    kind: type[KeyValueStore], got: tuple[bytes, int], scanned: tuple[bytes, int], in_engine: bytes
) -> None:
    engine = MemoryEngine(1_000)
    store = kind(engine)
    store.apply([ChangelogRecord(b"k", b"v", 5)], AT)
    assert engine.get("default", b"k") == in_engine
    assert store.get_with_timestamp(b"k") == got
    assert store.get(b"k") == got[0]
    assert store.get_with_timestamp(b"absent") is None
    assert store.get_many([b"k", b"absent"]) == [got, None]
    assert store.scan_with_timestamps(KeyRange(), 10, 100, Walk()).entries == [(b"k", *scanned)]
    assert store.scan(KeyRange(), 10, 100, Walk()).entries == [(b"k", scanned[0])]


def test_who_reads_otherwise_can_not_say_that_it_keeps_timestamps() -> None:
    kind = type("Wrong", (OwnReads,), {"keeps_timestamps": True})
    assert not kind.keeps_timestamps  # type: ignore[attr-defined] - made above


class OwnPages(KeyValueStore):
    """Reads pages by its own code, of entries as they are written by default."""

    def scan_with_timestamps(
        self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk
    ) -> RangePage[tuple[bytes, bytes, int]]:
        return super().scan_with_timestamps(keys, limit, max_bytes, walk)


@pytest.mark.parametrize(
    ("kind", "scans_engine"),
    [
        (KeyValueStore, True),
        (Filtering, True),
        (OwnTimes, True),
        (OwnPages, False),
        (OwnScans, False),
        (OwnReads, False),
    ],
)
def test_pages_of_a_kind_with_code_of_its_own_are_not_taken_for_reads_of_the_engine(
    kind: type[KeyValueStore], scans_engine: bool
) -> None:
    assert kind.scans_engine is scans_engine
