"""Which router a client asks: one that is well, for as long as it is; then the one whose failure is longest ago."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statehouse.client.router_choice import RouterChoice

EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60)


@given(st.integers(1, 4), st.integers(0, 3), EVENTS)
def test_the_choice_stays_while_it_is_well_and_moves_to_the_one_that_failed_longest_ago(
    count: int, first: int, events: list[tuple[bool, int]]
) -> None:
    choice = RouterChoice(count, first % count)
    failed_at: dict[int, float] = {}
    for now, (is_well, number) in enumerate(events, 1):
        router, before = number % count, choice.current
        if is_well:
            choice.succeeded(router)
            failed_at.pop(router, None)
            assert choice.current in {before, router}
            assert choice.has_answered
        else:
            choice.failed(router, float(now))
            failed_at[router] = float(now)
            assert before in {choice.current, router}
        if router != before or is_well:
            assert choice.current == before or failed_at.get(before, 0.0) > failed_at.get(choice.current, 0.0)
        else:
            assert all(failed_at.get(choice.current, 0.0) <= at for at in failed_at.values())


def test_calls_that_fail_together_move_once() -> None:
    choice = RouterChoice(3)
    for _ in range(5):
        choice.failed(0, 1.0)
    assert choice.current == 1
    choice.failed(1, 2.0)
    assert choice.current == 2
    choice.failed(2, 3.0)
    assert choice.current == 0
