"""How often a walk lets other threads run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from query_service.stores import walk as walks
from query_service.stores.walk import Walk

ENTRY_S = 0.000_001


class Clock:
    """Time passes with each entry. `turns` has, for each pause, how many entries were read before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._entries, self.turns = 0, list[int]()
        fake = SimpleNamespace(monotonic=lambda: self._entries * ENTRY_S, sleep=self._sleep)
        monkeypatch.setattr(walks, "time", fake)

    def _sleep(self, _seconds: float) -> None:
        self.turns.append(self._entries - sum(self.turns))

    def entries(self, count: int) -> Iterator[int]:
        for number in range(count):
            self._entries += 1
            yield number


def test_a_long_walk_lets_others_run_after_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert list(Walk().over(clock.entries(1_000))) == list(range(1_000))
    assert len(clock.turns) == 7
    assert max(clock.turns) <= 129


@pytest.mark.parametrize(("partitions", "each", "pauses"), [(1, 100, 0), (4, 20, 0), (100, 10, 9)])
def test_a_walk_over_small_partitions_lets_others_run_as_often(
    monkeypatch: pytest.MonkeyPatch, partitions: int, each: int, pauses: int
) -> None:
    clock, walk = Clock(monkeypatch), Walk()
    for _ in range(partitions):
        assert len(list(walk.over(clock.entries(each)))) == each
    assert len(clock.turns) == pauses
    assert max(clock.turns, default=0) <= 129
