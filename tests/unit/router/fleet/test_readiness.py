"""When a router is ready: with a table, and not with an old one."""

from __future__ import annotations

import pytest

from router.fleet.readiness import is_ready, longest_silence_s


@pytest.mark.parametrize(
    ("silences_s", "silence_s"),
    [((None, None), None), ((0.5, None), None), ((0.5, 3.0), 3.0), ((4.0, 0.0), 4.0), ((), None)],
)
def test_the_topic_that_is_silent_longest_counts(silences_s: tuple[float | None, ...], silence_s: float | None) -> None:
    assert longest_silence_s(silences_s) == silence_s


@pytest.mark.parametrize(
    ("has_table", "silence_s", "longest_s", "ready"),
    [
        (False, 0.0, 10.0, False),
        (True, None, 10.0, False),
        (True, 10.0, 10.0, True),
        (True, 10.1, 10.0, False),
        (True, 1e6, 0.0, True),
        (False, 0.0, 0.0, False),
    ],
)
def test_a_router_without_a_table_or_with_an_old_one_is_not_ready(
    has_table: bool, silence_s: float | None, longest_s: float, ready: bool
) -> None:
    assert is_ready(has_table=has_table, silence_s=silence_s, longest_s=longest_s) is ready
