"""Pages of a global store: every key once, in order, with the value that Get would give, however small the pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from query_service.reads.scans import _one_per_key
from query_service.stores.base import RangePage
from statehouse.contract.partitioning import partition_for

KEYS = [bytes([letter]) for letter in b"abcdefgh"] + [b""]
Entries = dict[bytes, bytes]


def page_of(entries: Entries, after: bytes | None, size: int, *, reverse: bool) -> RangePage[tuple[bytes, bytes, int]]:
    """What a partition's store returns: it may be short of what was asked for."""
    left = sorted((item for item in entries.items() if _is_after(item[0], after, reverse=reverse)), reverse=reverse)
    return RangePage([(key, value, len(value)) for key, value in left[:size]], more=len(left) > size)


def _is_after(key: bytes, after: bytes | None, *, reverse: bool) -> bool:
    return after is None or (key < after if reverse else key > after)


@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=2)), min_size=2, max_size=4),
    st.integers(1, 5),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.booleans(),
)
def test_pages_are_what_get_says(partitions: list[Entries], limit: int, sizes: list[int], reverse: bool) -> None:
    expected: Entries = {}
    for key in {key for entries in partitions for key in entries}:
        home = partition_for(key, len(partitions))
        order = [home, *(number for number in range(len(partitions)) if number != home)]
        # A value's length is its timestamp. The latest counts, of several the first.
        expected[key] = max((partitions[number][key] for number in order if key in partitions[number]), key=len)
    found: list[tuple[bytes, bytes, int]] = []
    after: bytes | None = None
    while True:
        pages = [
            page_of(entries, after, min(limit, size), reverse=reverse)
            for entries, size in zip(partitions, sizes, strict=False)
        ]
        page = _one_per_key(pages, limit, reverse=reverse)
        assert len(page.entries) <= limit
        found += page.entries
        if not page.more:
            break
        assert page.entries, "each page gets on"
        after = page.entries[-1][0]
    assert found == [(key, value, len(value)) for key, value in sorted(expected.items(), reverse=reverse)]
