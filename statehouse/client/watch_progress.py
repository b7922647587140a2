"""How far a watch has got: where it resumes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from statehouse.client.answers import Update, WatchPosition


class WatchProgress:
    """The positions after which a watch goes on, by partition. `resumed`: where it began."""

    def __init__(self, resumed: Iterable[WatchPosition] = ()) -> None:
        self._positions = {each.partition: each for each in resumed}

    @property
    def positions(self) -> tuple[WatchPosition, ...]:
        """Where to go on; a partition that isn't there begins with its current values."""
        return tuple(self._positions.values())

    def note(self, update: Update) -> None:
        """Take note of an update that is done with.

        While current values are incomplete their partition has no position: who comes back then gets all of them.
        """
        if update.position is not None:
            self._positions[update.partition] = update.position
        elif update.current:
            self._positions.pop(update.partition, None)
