"""What a run needs of a system."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.truth.checks import Shown
from statehouse.local.process import ManagedProcess, descendants
from tests.support.fault_proxy import BOTH, FaultProxy

BOUND_S: Final = 5.0
"""No answer may lack what the source has had for longer, where a read asks for that."""
Pair = tuple[str, str]


class NoAnswer(Exception):
    """An attempt failed; another may not."""


class Refused(NoAnswer):
    """The system said that it can't hold the bound."""


Read = Callable[[Pair, float], Shown]
"""Asks for a pair, and raises NoAnswer if no answer comes within so many seconds."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read: without a bound, and with it. None: it can't be asked for."""

    plain: Read
    bounded: Read | None


class System(ABC):
    """Processes that serve the bank, what fills them, and the link between both.

    Attributes:
        ways: by the names in the tables.
        link: what they are filled through; the fault `cut` stops its bytes.

    """

    ways: Mapping[str, Way]
    link: FaultProxy

    @property
    @abstractmethod
    def serving(self) -> Sequence[ManagedProcess]:
        """Return the processes that answer, which faults hit."""

    @property
    @abstractmethod
    def writer(self) -> ManagedProcess | None:
        """Return Spark's driver; None: what serves computes, too."""

    @property
    def checkpoints(self) -> Path:
        """Where Spark's checkpoint is."""
        raise NotImplementedError

    @abstractmethod
    def start(self) -> None:
        """Start all processes."""

    @abstractmethod
    def stop(self) -> None:
        """End them."""

    def check(self) -> None:
        """Raise ProcessFailed if something has ended."""
        for each in self._supervised:
            each.check()

    def tend(self, away: ManagedProcess | None = None) -> int:
        """Start what has ended on its own, as a supervisor does, but what a fault holds; return how many that were."""
        ended = [each for each in self._supervised if each is not away and not each.is_running]
        for each in ended:
            each.start()
        return len(ended)

    @property
    def _supervised(self) -> Sequence[ManagedProcess]:
        return self.serving if self.writer is None else (*self.serving, self.writer)

    def cut(self) -> None:
        """Let no bytes pass."""
        self.link.stall(*BOTH)

    def heal(self) -> None:
        """Let them pass again, also those that waited."""
        self.link.heal()


def freeze(process: ManagedProcess) -> None:
    """Have a process and its children stand still."""
    _signal_all(process, signal.SIGSTOP)


def thaw(process: ManagedProcess) -> None:
    """Have them go on."""
    _signal_all(process, signal.SIGCONT)


def _signal_all(process: ManagedProcess, number: signal.Signals) -> None:
    process.signal(number)
    for child in () if process.pid is None else descendants(process.pid):
        child.send(number)
