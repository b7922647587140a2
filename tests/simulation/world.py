"""The world of one run: randomness, network, processes, trace, and the first rule that was broken."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.simulation.loop import VirtualLoop
from tests.simulation.recording import Unrecorded

# 2023-11-14, 22:13:20 UTC: what wall clocks show at time 0.
WALL_S = 1_700_000_000.0
KAFKA = "kafka"


def epoch_ms(at_s: float) -> int:
    """Return a time of the simulation as Kafka's brokers write it into records."""
    return round((WALL_S + at_s) * 1000)


_DELAY_S = (0.001, 0.01)
_SPIKE_SHARE = 0.02
_SPIKE_S = (0.02, 0.06)
LONGEST_DELAY_S = _DELAY_S[1] + _SPIKE_S[1]
"""What a message over a link takes at most with which nothing is wrong."""

T = TypeVar("T")


def settle(reply: asyncio.Future[T], result: T) -> None:
    """Hand a result over, unless nobody waits for it any more."""
    if not reply.done():
        reply.set_result(result)


class World:
    """Everything that the processes of one run share."""

    def __init__(self, seed: int, loop: VirtualLoop, *, is_traced: bool) -> None:
        self.seed, self.loop = seed, loop
        self.rng = random.Random(seed)
        self.trace: list[str] | None = [] if is_traced else None
        self.counts: Counter[str] = Counter()
        self.violation = ""
        self.broken = asyncio.Event()
        self.disks_refuse = True
        """Now and then."""
        self.numbers = itertools.count(1)
        """Of stores that are opened."""
        self.recorder = Unrecorded()
        self.net = Network(self)
        loop.set_exception_handler(self._defect)

    @property
    def now(self) -> float:
        return self.loop.now

    def monotonic(self) -> float:
        """Stands in for `time.monotonic`."""
        return self.loop.now

    def time(self) -> float:
        """Stands in for `time.time`."""
        return WALL_S + self.loop.now

    def note(self, who: str, what: str, *details: object) -> None:
        """Write a line of the trace; details are put together only if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f}  {who:<10}  {what.format(*details)}")

    def break_rule(self, rule: str, message: str) -> None:
        """End the run: something that must always hold does not."""
        if not self.violation:
            self.violation = f"{rule}: {message}"
            self.note("CHECK", "VIOLATION {}: {}", rule, message)
        self.broken.set()

    def _defect(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.break_rule("no defects", f"{context['message']}: {type(error).__name__}: {error}")

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine; its failing is a defect."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            line = "" if where is None else f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})"
            self.break_rule("no defects", f"{type(error).__name__}: {error}{line}")


class Network:
    """Links between machines, each direction on its own: cut, lossy or slow, else quick."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: Counter[tuple[str, str]] = Counter()
        self._loss: dict[tuple[str, str], float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], list[Callable[[], object]]] = {}
        self._disturbed_at: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str) -> None:
        self._cut[source, target] += 1
        self._disturbed_at[source, target] = self._world.now

    def heal(self, source: str, target: str) -> None:
        """Undo one cut; what was kept for delivery is delivered late."""
        self._cut[source, target] -= 1
        self._disturbed_at[source, target] = self._world.now
        if self.is_open(source, target):
            for deliver in self._held.pop((source, target), []):
                self._world.loop.call_later(self._delay_s(source, target), deliver)

    def disturb(self, source: str, target: str, *, loss: float = 0.0, delay_s: float = 0.0) -> None:
        """Make a link lossy or slow; without either it is well again."""
        self._loss[source, target], self._slow[source, target] = loss, delay_s
        self._disturbed_at[source, target] = self._world.now

    def is_open(self, source: str, target: str) -> bool:
        return self._cut[source, target] <= 0

    def is_well(self, one: str, other: str, since: float) -> bool:
        """Whether nothing has been wrong with a link, in either direction, since a time."""
        for link in ((one, other), (other, one)):
            if self._cut[link] > 0 or self._loss.get(link) or self._slow.get(link):
                return False
            if self._disturbed_at.get(link, -1.0) >= since:
                return False
        return True

    def send(self, source: str, target: str, deliver: Callable[[], object], *, may_be_late: bool = False) -> bool:
        """Deliver after the link's delay; a cut or lossy link loses it, or keeps it until it is healed.

        False: it was lost immediately.
        """
        rng = self._world.rng
        if not self.is_open(source, target):
            if may_be_late and rng.random() < 0.5:
                self._held.setdefault((source, target), []).append(deliver)
                self._world.counts["sent late"] += 1
                return True
            self._world.counts["lost in a cut"] += 1
            return False
        loss = self._loss.get((source, target), 0.0)
        if loss and rng.random() < loss:
            self._world.counts["lost on the way"] += 1
            return False
        self._world.loop.call_later(self._delay_s(source, target), deliver)
        return True

    def _delay_s(self, source: str, target: str) -> float:
        rng = self._world.rng
        delay_s = rng.uniform(*_DELAY_S)
        if rng.random() < _SPIKE_SHARE:
            delay_s += rng.uniform(*_SPIKE_S)
        slow_s = self._slow.get((source, target), 0.0)
        return delay_s + (rng.uniform(0.5, 1.0) * slow_s if slow_s else 0.0)


class Process:
    """Something that runs on a machine, and can be killed, frozen and thawed.

    Steps that are due while it is frozen happen, in order, when it is thawed.
    """

    def __init__(self, world: World, machine: str, name: str) -> None:
        self.world, self.machine, self.name = world, machine, name
        self.is_alive = True
        self.is_frozen = False
        self.started_at = self.undisturbed_since = world.now
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back after a time."""
        self.world.loop.call_later(delay_s, self.enter, callback, *arguments)

    def enter(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back now, or when it is thawed; never if it is dead by then."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._deferred.append((callback, arguments))
        else:
            callback(*arguments)

    async def sleep(self, seconds: float) -> None:
        """Wait, in a coroutine of this process."""
        await asyncio.sleep(seconds)
        await self.turn()

    async def turn(self) -> None:
        """Wait as long as this process is frozen."""
        while self.is_frozen:
            turn = self.world.loop.create_future()
            self._deferred.append((lambda turn=turn: None if turn.done() else turn.set_result(None), ()))
            await turn

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        self.undisturbed_since = self.world.now
        deferred, self._deferred = self._deferred, []
        for callback, arguments in deferred:
            self.world.loop.call_soon(self.enter, callback, *arguments)

    def kill(self) -> None:
        self.is_alive = False
        self._deferred.clear()

    def send(self, target: str, deliver: Callable[[], object], *, may_be_late: bool = False) -> bool:
        """Send from this process' machine."""
        return self.world.net.send(self.machine, target, deliver, may_be_late=may_be_late)
