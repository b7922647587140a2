"""The row with the greatest time of its key is kept, in whatever order rows come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.order import RecordPosition
from processor.outputs.newest import Newest

_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([None, "eA==", "eQ=="])), min_size=1, max_size=20
)


@pytest.mark.feature("newest-by")
@given(rows=_ROWS, random=st.randoms())
def test_the_newest_row_is_kept_in_whatever_order_they_come(rows: list[Any], random: Any) -> None:
    placed = [(at, partition, offset, kept) for offset, (at, partition, kept) in enumerate(rows)]
    *place, kept = max(placed, key=lambda each: each[:3])
    random.shuffle(placed)
    newest, state = Newest(), None
    for at, partition, offset, value in [*placed, *placed]:  # twice, as after a replay
        row = {"at": at} | ({} if value is None else {"kept": value})
        state = newest.add(state, row, RecordPosition(1_000 + offset, partition, offset))
    assert state == [*place, 1_000 + place[2], kept]
    assert newest.render(state) == (None if kept is None else {"time": 1_000 + place[2], "value": kept})
