"""Reads pairs in threads, judges each answer, and notes how often none came."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.truth.checks import Ledger, Tally
from bench.truth.systems.system import BOUND_S, NoAnswer, Pair, Read, Refused, Way

ANSWERED_WITHIN_S: Final = 2.0
"""How long a lookup may take, further attempts included."""
_PAUSE_S: Final = 0.02
_SAID_MAX: Final = 5


@dataclass
class Reader:
    """One sort of read, again and again."""

    read: Read
    bound_s: float | None
    tally: Tally = field(default_factory=Tally)
    said: list[str] = field(default_factory=list)
    """The first failures, for people."""

    def ask(self, pair: Pair, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask once, with as many attempts as there is time for."""
        give_up_at = clock() + ANSWERED_WITHIN_S
        failures: list[NoAnswer] = []
        while (asked_at := clock()) < give_up_at:
            try:
                shown = self.read(pair, give_up_at - asked_at)
            except NoAnswer as failure:
                failures.append(failure)
                time.sleep(_PAUSE_S)
            else:
                self.tally.take(shown, pair, ledger, asked_at, self.bound_s)
                return
        self._gave_up(failures)

    def _gave_up(self, failures: Sequence[NoAnswer]) -> None:
        # The last attempt had little time; that the bound can't be held had been said before.
        if any(isinstance(each, Refused) for each in failures):
            self.tally.refused += 1
        else:
            self.tally.failed += 1
            if len(self.said) < _SAID_MAX:
                self.said.append(str(failures[-1])[:500])


class Readers:
    """All ways of a system, each without and with the bound."""

    def __init__(self, ways: Mapping[str, Way], pairs: list[Pair], ledger: Ledger, seed: int) -> None:
        self.plain = {name: Reader(way.plain, None) for name, way in ways.items()}
        self.bounded = {
            name: Reader(way.bounded, BOUND_S, Tally(too_old=0))
            for name, way in ways.items()
            if way.bounded is not None
        }
        self._pairs, self._ledger, self._seed = pairs, ledger, seed
        self._defects: list[Exception] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read meanwhile."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._read_on, args=(each, f"{self._seed}-{number}", stop), name="reader")
            for number, each in enumerate((*self.plain.values(), *self.bounded.values()))
        ]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            stop.set()
            for each in threads:
                each.join()
        for defect in self._defects:
            raise defect

    def _read_on(self, reader: Reader, seed: str, stop: threading.Event) -> None:
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        try:
            while not stop.wait(_PAUSE_S):
                reader.ask(rng.choice(self._pairs), self._ledger)
        except Exception as error:  # noqa: BLE001 - raised where they end
            self._defects.append(error)
