"""How far restores are, how fast, and how long they still take: from samples of their positions. Pure.

Its input comes from outside the node, a sample now and then; what the node itself shows comes from its own events
(`query_service.telemetry.restore_progress`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_WINDOW_S: Final = 10.0
"""A rate covers so many seconds: short enough to show a stall, long enough to be read."""
_SAMPLES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RestoreSample:
    """Where a restore is at one moment. Positions are changelog offsets, or bytes of files; None means unknown.

    Attributes:
        store: None if only the router told of it: then positions are sums over the task's stores.
        partition: of the changelog.
        started_at: the position that the restore began with.
        end: the largest known end of the changelog.
        peer: the node whose files are fetched; empty if the changelog is read.

    """

    node: str
    task: str
    role: str
    store: str | None = None
    partition: int | None = None
    position: int | None = None
    started_at: int | None = None
    end: int | None = None
    peer: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What is restored, and where."""
        return self.node, self.task, self.store or "", -1 if self.partition is None else self.partition


@dataclass(frozen=True, slots=True)
class RunningRestore:
    """How far a restore is.

    Attributes:
        done: offsets passed since it began; a log has fewer records than offsets. None if unknown.
        left: offsets that remain up to the largest known end. None if unknown.
        per_s: offsets passed a second, lately. None until two samples differ in time.
        eta_s: seconds until the end at that rate. None while nothing moves, or if the end is unknown.
        peer: the node whose files are fetched: then bytes are meant, not offsets. Empty if the changelog is read.

    """

    node: str
    task: str
    role: str
    store: str | None
    partition: int | None
    done: int | None
    left: int | None
    per_s: float | None
    eta_s: float | None
    peer: str = ""

    @property
    def name(self) -> str:
        """What is restored, for people: STORE/PARTITION, or the task."""
        return self.task if self.store is None else f"{self.store}/{self.partition}"

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1. None if unknown."""
        if self.done is None or self.left is None:
            return None
        total = self.done + self.left
        return self.done / total if total else 1.0


@dataclass(slots=True)
class _Restore:
    began_at: int
    peer: str = ""
    positions: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))


class RestoreRates:
    """Takes samples of all restores that are under way. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._restores: dict[tuple[str, str, str, int], _Restore] = {}
        self.ended = 0
        """Restores that were seen and are under way no longer."""

    def take(self, samples: Iterable[RestoreSample], now_s: float) -> list[RunningRestore]:
        """Take the newest sample of each restore; return how far each is. A restore without a sample has ended."""
        seen = {sample.key: sample for sample in samples}
        for key in self._restores.keys() - seen.keys():
            del self._restores[key]
            self.ended += 1
        return [self._status(sample, now_s) for sample in seen.values()]

    def _status(self, sample: RestoreSample, now_s: float) -> RunningRestore:
        position = sample.position
        known = self._restores.get(sample.key)
        if known is not None and known.peer != sample.peer:
            known = None
        if position is None:
            if known is None:
                self._restores[sample.key] = _Restore(sample.started_at or 0, sample.peer)
            return _of(sample, None, None, None)
        if known is None or not known.positions or position < known.positions[-1][1]:
            # New, or begun anew: then what was before says nothing.
            known = self._restores[sample.key] = _Restore(
                position if sample.started_at is None else min(position, sample.started_at), sample.peer
            )
        known.positions.append((now_s, position))
        while len(known.positions) > 2 and now_s - known.positions[0][0] > _WINDOW_S:
            known.positions.popleft()
        left = None if sample.end is None else max(0, sample.end - position)
        return _of(sample, position - known.began_at, left, _rate(known.positions))


def _rate(positions: deque[tuple[float, int]]) -> float | None:
    (first_s, first), (last_s, last) = positions[0], positions[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else None


def _of(sample: RestoreSample, done: int | None, left: int | None, per_s: float | None) -> RunningRestore:
    eta_s = left / per_s if left is not None and per_s else None
    return RunningRestore(
        sample.node, sample.task, sample.role, sample.store, sample.partition, done, left, per_s, eta_s, sample.peer
    )
