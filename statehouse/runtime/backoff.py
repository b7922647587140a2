"""Pauses before another try, which double with each failure: one rule, and a name for each cause. Pure.

Each cause has its own policy, declared where the failure is handled, as in TiKV's client. A process with metrics
counts its pauses by cause.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

# More doublings than any policy needs from its first pause to its longest, and few enough for a float.
_DOUBLINGS_MAX = 64

Key = TypeVar("Key", bound=Hashable)
OnPause = Callable[[str], None]
"""Called with the cause of each pause."""


def _uncounted(_cause: str) -> None:
    """Count no pause."""


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The pauses of one cause, in seconds: from the first, twice as long each time, to the longest.

    `cause`: the failure's name in metrics.
    """

    cause: str
    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """Return the pause in seconds after this number of failures in a row, at least 1."""
        return min(self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.longest_s)


class Backoff:
    """Counts one thing's failures in a row. `on_pause(cause)` is called for each pause."""

    def __init__(self, policy: BackoffPolicy, on_pause: OnPause = _uncounted) -> None:
        self._policy, self._on_pause = policy, on_pause
        self.failures = 0

    def failed(self) -> float:
        """Count another failure; return how many seconds to pause."""
        self.failures += 1
        self._on_pause(self._policy.cause)
        return self._policy.pause_s(self.failures)

    def succeeded(self) -> None:
        """Start over: the next failure is the first."""
        self.failures = 0


class BackoffByKey(Generic[Key]):
    """Counts several things' failures in a row, each thing by its own key."""

    def __init__(self, policy: BackoffPolicy, on_pause: OnPause = _uncounted) -> None:
        self._policy, self._on_pause = policy, on_pause
        self._failing: dict[Key, Backoff] = {}

    def failed(self, key: Key) -> float:
        """Count another failure of this key; return how many seconds to pause."""
        if key not in self._failing:
            self._failing[key] = Backoff(self._policy, self._on_pause)
        return self._failing[key].failed()

    def succeeded(self, key: Key) -> None:
        """Start over for this key: its next failure is the first."""
        self._failing.pop(key, None)

    def retain(self, is_wanted: Callable[[Key], bool]) -> None:
        """Forget all keys that are not wanted."""
        self._failing = {key: backoff for key, backoff in self._failing.items() if is_wanted(key)}
