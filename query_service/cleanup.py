"""Cleanup: which folders of the state directory nobody needs any more. No I/O, and no clock.

What a node no longer holds stays on its disk for a while, and is reported, so that getting it back costs only what
changed meanwhile (Kafka Streams' `state.cleanup.delay.ms`).
"""

from __future__ import annotations

from collections.abc import Collection

from statehouse.topology import HeldId


class Leftovers:
    """Tells for how long each folder has lain idle.

    Time counts from when this process first saw the folder idle, on a clock that doesn't jump. So what an earlier run
    left is kept for one delay more: the wall clock of a machine that was just started can't be trusted to tell how old
    it is, and removing it too early costs a restore.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._idle_since_s: dict[HeldId, float] = {}

    def due(self, on_disk: Collection[HeldId], in_use: Collection[HeldId], now_s: float) -> list[HeldId]:
        """Return the folders that have been idle at every look for the delay. `now_s`: seconds, monotonic."""
        self._idle_since_s = {each: self._idle_since_s.get(each, now_s) for each in on_disk if each not in in_use}
        return [each for each, since_s in self._idle_since_s.items() if now_s - since_s >= self._delay_s]
