"""Whatever walks come and end, a caller's leave places for those of others."""

from __future__ import annotations

from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from router.lookups.walk_shares import PLACE_S, Walked, WalkShares, walked_in
from statehouse.contract.batch_cuts import is_kept
from statehouse.contract.moment_leases import LEASED_MAX
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.errors import Reason
from tests.support.refusals import why_refused

HALF = LEASED_MAX // 2
STEPS = st.tuples(
    st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]), st.integers(0, 20), st.booleans(), st.floats(0, PLACE_S)
)


def at(batch_id: int, store: str = "s") -> Walked:
    return store, "q", batch_id


@given(st.lists(STEPS, max_size=200))
def test_places_are_those_of_walks_that_go_on_and_nobody_has_all(steps: list[tuple[str, int, bool, float]]) -> None:
    shares, now_s = WalkShares(), 0.0
    asked_at: dict[tuple[str, int], float] = {}
    for address, batch_id, ends, passes_s in steps:
        now_s += passes_s
        asked_at = {place: at_s for place, at_s in asked_at.items() if now_s - at_s < PLACE_S}
        place = address, batch_id
        own = Counter(owner for owner, _ in asked_at)
        is_free = place in asked_at or own[address] < LEASED_MAX - len(asked_at)
        if is_free:
            shares.enter(address, at(batch_id), now_s)
            asked_at[place] = now_s
        else:
            assert why_refused(lambda: shares.enter(address, at(batch_id), now_s)) is Reason.OVERLOADED  # noqa: B023
        if ends:
            shares.leave(address, at(batch_id))
            asked_at.pop(place, None)
        assert shares.taken("s") == len(asked_at) <= LEASED_MAX
        assert all(count <= HALF for count in Counter(owner for owner, _ in asked_at).values())


def test_a_caller_that_walks_at_many_moments_takes_no_place_from_another() -> None:
    shares = WalkShares()
    shares.enter("b", at(1), 0.0)
    refused = [why_refused(partial(shares.enter, "a", at(batch_id), 1.0)) for batch_id in range(100)]
    assert refused == [None] * HALF + [Reason.OVERLOADED] * (100 - HALF)
    shares.enter("b", at(1), 2.0)
    shares.enter("b", at(2), 2.0)
    shares.enter("a", at(0), 2.0)
    shares.enter("a", at(1_000, "other"), 2.0)


@given(st.integers(0, 1_000), st.integers(0, 1_000))
def test_only_a_moment_that_no_id_keeps_needs_a_place(batch_id: int, newest: int) -> None:
    bound = MomentBound(Asked.EXACTLY, MomentToken({"q": batch_id}))
    assert walked_in("s", bound, ("q", newest)) == (None if is_kept(batch_id, newest) else at(batch_id))
    assert walked_in("s", bound, ("another", newest)) is None
    assert walked_in("s", bound, None) is None
    assert walked_in("s", None, ("q", newest)) is None
    assert walked_in("s", MomentBound(Asked.AT_LEAST, bound.token), ("q", newest)) is None
