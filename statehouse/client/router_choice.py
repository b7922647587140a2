"""Which of several routers to ask: the one that answered last, until it fails. Pure."""

from __future__ import annotations

from typing import Final

_NEVER: Final = float("-inf")


class RouterChoice:
    """Chooses among `count` routers, by number. All times are seconds of one clock, any clock.

    A client stays with a router while it is well, so that its connection to another one costs nothing. `first` should
    be random, so that clients spread over the routers.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        self._failed_at = [_NEVER] * count
        self.current = first
        """The router to ask."""
        self.has_answered = False
        """Whether any router has ever answered: what has, may come back."""

    def succeeded(self, router: int) -> None:
        """Take that a router has answered."""
        self.has_answered = True
        if self._failed_at[self.current] > self._failed_at[router]:
            self.current = router
        self._failed_at[router] = _NEVER

    def failed(self, router: int, now_s: float) -> None:
        """Take that a router has failed. The next one is asked: the one whose last failure is longest ago."""
        self._failed_at[router] = now_s
        if router == self.current:
            count = len(self._failed_at)
            turns = ((router + step) % count for step in range(1, count + 1))
            self.current = min(turns, key=self._failed_at.__getitem__)
