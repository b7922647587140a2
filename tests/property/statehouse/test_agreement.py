"""Parts of a read come to show one batch, whatever replicas keep and however they go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.agreement import ROUNDS, Agreement, ask_for, batch_shown, is_gone
from statehouse.contract.batch_cuts import DENSE
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import errors_pb2, types_pb2

NEWEST = MomentBound()
# How many batches a part gets on, at most, from one round to the next.
_DRIFT = 2


def asking(agreement: Agreement[int], ask: Callable[[int, MomentBound], int | None], parts: int) -> int:
    """Ask parts until they agree; return how often they were asked."""
    asked, bound = list(range(parts)), NEWEST
    for times in range(1, ROUNDS + 2):
        for part in asked:
            agreement.shows(part, f"part {part}", ask(part, bound))
        step = agreement.next()
        if step is None:
            return times
        asked, bound = list(step[0]), step[1]
    raise AssertionError("it asks on and on")


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, DENSE - 1)), min_size=1, max_size=6),
    st.integers(0, 60),
    st.data(),
)
def test_parts_that_reach_what_they_are_asked_for_agree(
    parts: list[tuple[int, int]], least: int, data: st.DataObject
) -> None:
    """Each part is at a batch and keeps some before it; one that is asked for a later one waits, so it gets there."""
    at = [newest for newest, _ in parts]
    shown: dict[int, int | None] = {}
    bounds = [MomentBound(Asked.AT_LEAST, MomentToken({"q": least})), NEWEST]

    def ask(part: int, bound: MomentBound) -> int | None:
        mine = bound if bound is not NEWEST else bounds[part % 2]
        exactly = mine.exactly("q")
        at[part] = max(at[part], mine.least("q")) + (data.draw(st.integers(0, _DRIFT)) if exactly is None else 0)
        shown[part] = at[part] if exactly is None else exactly
        if exactly is not None and not at[part] - parts[part][1] <= exactly <= at[part]:
            shown[part] = None
        return shown[part]

    agreement = Agreement[int]("q", bounds[: len(parts)])
    if any(kept < _DRIFT for _, kept in parts):
        with suppress(LookupFailure):
            asking(agreement, ask, len(parts))
            assert len(set(shown.values())) == 1
        return
    assert asking(agreement, ask, len(parts)) <= ROUNDS
    (batch_id,) = set(shown.values())
    assert batch_id is not None
    assert batch_id >= least


def test_a_part_that_fails_need_not_agree() -> None:
    agreement = Agreement[str]("q", [NEWEST])
    for part, batch_id in (("a", 5), ("b", 6), ("c", 3)):
        agreement.shows(part, part, batch_id)
    agreement.leaves("c")
    assert agreement.next() == (["b"], MomentBound(Asked.EXACTLY, MomentToken({"q": 5})))
    agreement.leaves("b")
    assert agreement.next() is None


def test_a_failure_names_some_of_many() -> None:
    agreement = Agreement[int]("q", [])
    with pytest.raises(LookupFailure, match=r"part 1 showed 1, .*, …$") as caught:
        asking(agreement, lambda part, _bound: part, 30)
    assert caught.value.metadata == {"query_id": "q", "newest": "29"}


def test_what_one_node_no_longer_keeps_is_gone() -> None:
    candidate = errors_pb2.Candidate(reason=errors_pb2.ERROR_REASON_MOMENT_GONE)
    assert is_gone(LookupFailure(Reason.MOMENT_GONE, ""))
    assert is_gone(LookupFailure(Reason.NO_REPLICA_AVAILABLE, "", candidates=[candidate]))
    assert not is_gone(LookupFailure(Reason.NO_REPLICA_AVAILABLE, ""))


def test_a_store_that_was_made_anew_shows_none_of_the_query() -> None:
    assert batch_shown(types_pb2.Moment(query_id="q", batch_id=7), "q") == 7
    assert batch_shown(types_pb2.Moment(query_id="r", batch_id=7), "q") is None


@pytest.mark.parametrize("wait_ms", [None, 7])
def test_a_request_for_another_batch_waits_as_long(wait_ms: int | None) -> None:
    freshness = types_pb2.Freshness(max_lag=5, moment=MomentBound(wait_ms=wait_ms).to_proto())
    exactly = MomentBound(Asked.EXACTLY, MomentToken({"q": 5}))
    ask_for(freshness, exactly)
    assert freshness.max_lag == 5
    assert MomentBound.from_proto(freshness.moment) == MomentBound(exactly.asked, exactly.token, wait_ms)
