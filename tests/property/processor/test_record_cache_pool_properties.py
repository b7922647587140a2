"""The record cache's pool against a ledger."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from processor.sink.record_cache_pool import pool_share
from tests.support.examples import given_many


@pytest.mark.feature("one-pool-stores")
@given_many(st.integers(0, 10_000), st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_the_pool_is_never_overdrawn_and_each_batch_gets_half_its_fair_share(
    max_bytes: int, queries: int, events: list[tuple[bool, int]]
) -> None:
    lent: dict[int, int] = {}
    for begins, query in events:
        if not begins:
            lent.pop(query, None)
        elif query < queries and query not in lent:
            share = pool_share(max_bytes, list(lent.values()), queries)
            assert share >= max_bytes // (2 * queries)
            if queries == 1:
                assert share == max_bytes, "the only query has all of it"
            lent[query] = share
        assert sum(lent.values()) <= max_bytes
