"""Plays faults to a system, and counts what its answers are worth meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.failure import BenchFailure
from bench.reporting import say
from bench.truth.checks import count_wrong
from bench.truth.reading import ANSWERED_WITHIN_S, Readers
from bench.truth.schedule import SAID, Blow, Fault, Schedule, schedule
from bench.truth.systems.system import NoAnswer, Pair, Read, System, freeze, thaw
from bench.truth.trading import Trading
from statehouse.local.process import ManagedProcess

_OPENS_WITHIN_S: Final = 600.0
_UNCHANGED_S: Final = 90.0
"""What hasn't become right for so long stays wrong; on a busy machine a batch may take nearly as long."""
_LOOK_S: Final = 0.1
_TIGHT_S: Final = 0.002
_CALM_S: Final = 4.0
"""How long the bank trades after the last fault."""
_BATCHES: Final = 10
_ATTEMPTS: Final = 8
_MID_BATCH_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """What came of one fault."""

    fault: Fault
    seconds: float
    restarts: int
    """How often something that a fault had not hit ended, and was started again."""
    wrong: int
    """Accounts that were not what they are, and stayed so without transfers."""
    readers: Readers

    def records(self, system: str) -> list[dict[str, Any]]:
        """Return the figures, one record for each way to read."""
        return [
            {
                "system": system,
                "way": name,
                "fault": str(self.fault),
                "seconds": round(self.seconds, 1),
                "restarts": self.restarts,
                "wrong_at_the_end": self.wrong,
                "plain": plain.tally.record(),
                "bounded": self.readers.bounded[name].tally.record() if name in self.readers.bounded else None,
                "said": [*plain.said, *(self.readers.bounded[name].said if name in self.readers.bounded else ())],
            }
            for name, plain in self.readers.plain.items()
        ]


class Play:
    """A system with the bank at work."""

    def __init__(self, system: System, trading: Trading, seed: int, plan: Schedule = schedule) -> None:
        self._system, self._trading, self._seed, self._plan = system, trading, seed, plan
        self._restarts = 0

    def open(self) -> None:
        """Start the system, and wait until it shows all accounts as they were opened.

        Raises:
            BenchFailure: it doesn't in time.
            ProcessFailed: a part of it has ended.

        """
        self._trading.open()
        self._system.start()
        if wrong := self._settle(_OPENS_WITHIN_S, self._system.check):
            raise BenchFailure(f"{wrong} accounts don't show within {_OPENS_WITHIN_S:g} s")

    def part(self, fault: Fault) -> Part:
        """Have a fault strike as the schedule has it, while the bank trades and readers read."""
        began, self._restarts = time.monotonic(), 0
        readers = Readers(self._system.ways, self._trading.pairs, self._trading.ledger, self._seed)
        with readers.running():
            with self._trading.running():
                for blow in self._plan(fault, self._seed):
                    self._wait(blow.after_s)
                    self._strike(blow)
                self._wait(_CALM_S)
            wrong = self._settle(_UNCHANGED_S, self._tend)
        return Part(fault, time.monotonic() - began, self._restarts, wrong, readers)

    def _strike(self, blow: Blow) -> None:
        serving = self._system.serving
        victim = serving[blow.victim % len(serving)]
        match blow.fault:
            case Fault.NONE:
                self._wait(blow.lasts_s)
            case Fault.KILL:
                victim.kill()
                self._wait(blow.lasts_s, away=victim)
                victim.start()
                self._wait(blow.lasts_s)
            case Fault.FREEZE:
                freeze(victim)
                try:
                    self._wait(blow.lasts_s)
                finally:
                    thaw(victim)
            case Fault.CUT:
                self._system.cut()
                try:
                    self._wait(blow.lasts_s)
                finally:
                    self._system.heal()
            case Fault.WRITER:
                self._kill_in_batch(blow)
            case Fault.DRIVER:
                self._restart_driver()

    def _writer(self) -> ManagedProcess:
        writer = self._system.writer
        if writer is None:
            raise BenchFailure("what serves computes, too: there is no other writer")
        return writer

    def _restart_driver(self) -> None:
        writer = self._writer()
        writer.stop()
        writer.start()
        self._wait_for_batch()

    def _kill_in_batch(self, blow: Blow) -> None:
        """Kill Spark in the middle of a batch; again, should the batch have been over."""
        writer, batches = self._writer(), Batches(self._system.checkpoints)
        for _ in range(_ATTEMPTS):
            self._wait_for_batch()
            takes_s = batches.takes_s()
            self._wait_for_more(batches.planned, _MID_BATCH_WITHIN_S, "begin a batch", _TIGHT_S)
            time.sleep(blow.fraction * takes_s)
            writer.kill()
            is_in_batch = batches.committed() < batches.planned()
            self._wait(blow.lasts_s, away=writer)
            writer.start()
            if is_in_batch:
                self._wait_for_batch()
                return
        raise BenchFailure(f"{_ATTEMPTS} batches were over before Spark was killed")

    def _wait_for_batch(self) -> None:
        """Wait until Spark has committed another one."""
        self._wait_for_more(Batches(self._system.checkpoints).committed, _OPENS_WITHIN_S, "commit a batch", _LOOK_S)

    def _wait_for_more(self, newest: Callable[[], int], timeout_s: float, what: str, look_s: float) -> None:
        before, deadline = newest(), time.monotonic() + timeout_s
        while newest() <= before:
            if time.monotonic() > deadline:
                raise BenchFailure(f"waited {timeout_s:g} s for Spark to {what}")
            self._tend()
            time.sleep(look_s)

    def _wait(self, seconds: float, away: ManagedProcess | None = None) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._tend(away)
            time.sleep(min(_LOOK_S, left_s))

    def _tend(self, away: ManagedProcess | None = None) -> None:
        self._restarts += self._system.tend(away)

    def _settle(self, unchanged_s: float, look_after: Callable[[], None]) -> int:
        """Wait until all accounts are what they are; return how many are not, once that hasn't changed for a time."""
        read, before, since = next(iter(self._system.ways.values())).plain, -1, time.monotonic()
        while wrong := self._wrong(read):
            look_after()
            if wrong != before:
                before, since = wrong, time.monotonic()
            elif time.monotonic() > since + unchanged_s:
                break
            time.sleep(_LOOK_S)
        return wrong

    def _wrong(self, read: Read) -> int:
        shown = {}
        pairs: Sequence[Pair] = self._trading.pairs
        for pair in pairs:
            try:
                shown[pair] = read(pair, ANSWERED_WITHIN_S)
            except NoAnswer:
                return 2 * len(pairs)
        return count_wrong(shown, self._trading.bank.balances, self._trading.ledger)


class Batches:
    """How far Spark is, by the logs of its query's checkpoint."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints

    def planned(self) -> int:
        """Return the newest batch that has begun; -1 before the first one."""
        return self._newest("offsets")

    def committed(self) -> int:
        """Return the newest batch that is over; -1 before the first one."""
        return self._newest("commits")

    def takes_s(self) -> float:
        """Return how long the last batches took, the median."""
        newest = self.committed()
        taken = []
        for number in range(max(1, newest - _BATCHES), newest + 1):
            began, ended = self._log("offsets") / str(number), self._log("commits") / str(number)
            if began.exists() and ended.exists():
                taken.append(ended.stat().st_mtime - began.stat().st_mtime)
        return median(taken) if taken else 0.0

    def _newest(self, log: str) -> int:
        folder = self._log(log)
        return max((int(each.name) for each in folder.glob("*") if each.name.isdigit()), default=-1)

    def _log(self, log: str) -> Path:
        # An application's query has a folder of its own within the directory of checkpoints.
        return next(iter(self._checkpoints.glob(f"**/{log}")), self._checkpoints / log)


def played(name: str, play: Play, faults: Sequence[Fault]) -> Iterator[list[dict[str, Any]]]:
    """Play faults one after the other; yield the records of each."""
    for fault in faults:
        part = play.part(fault)
        records = part.records(name)
        for each in records:
            plain, bounded = each["plain"], each["bounded"]
            asked = "" if bounded is None else f"; bounded: {bounded['too_old']} too old, {bounded['refused']} refused"
            say(
                f"{each['way']}, {SAID[fault]}: {plain['reads']} answers, {plain['absent']} falsely absent, "
                f"{plain['torn']} torn, {plain['doubled']} doubled, {plain['failed']} failed, "
                f"oldest {plain['oldest_s']} s{asked}; {part.wrong} wrong at the end"
            )
        yield records
