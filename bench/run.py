"""A run: the sides on one broker, in turn, and what was measured on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import Watch
from bench.measure import Stage
from bench.records import create_topic, produce
from bench.shape import Plan, Side
from bench.sides.floor import EmptyHandlers
from bench.sides.ours import Fleet, SparkFleet
from bench.sides.peer import VARIANTS, KafkaStreams
from bench.sides.redis import REDISES, FedRedis, Redis, program
from bench.sides.servers import ROOT, Servers
from bench.summary import Measured
from bench.workloads import WORKLOADS


@dataclass(slots=True)
class Run:
    """Plans that are played one after the other. `name` begins the names of topics and applications."""

    bootstrap: str
    directory: Path
    name: str
    say: Callable[[str], None]
    before: Path = ROOT
    """The tree of `ours-before`."""
    measured: list[Measured] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    """The same, and how busy the machine was meanwhile and how much time the host took from it."""

    def play(self, plans: Sequence[Plan]) -> None:
        """Measure all.

        Raises:
            BenchFailure: a program is missing, an answer was wrong or missing, or a request failed that must not.
            ProcessFailed: a process has ended.

        """
        if any(side in REDISES for plan in plans for side in plan.work):
            program()  # a run takes long before it is needed
        for plan in plans:
            self._play(plan)

    def _play(self, plan: Plan) -> None:
        topic = self._source(plan, f"{self.name}-{plan.slug}")
        with ExitStack() as running:
            kept = {side: self._warm(plan, side, topic, running) for side in plan.work} if plan.together else {}
            for number in range(1, plan.rounds + 1):
                if plan.processor and number > 1:  # a topic's store is built once
                    shutil.rmtree(self.directory / topic)
                    topic = self._source(plan, f"{self.name}-{plan.slug}-{number}")
                # The first side has the cooler machine, so the sides take turns to be first.
                for side in list(plan.work)[:: 1 if number % 2 else -1]:
                    names = plan.work[side] + (plan.last_round.get(side, ()) if number == plan.rounds else ())
                    if plan.together:
                        self._work(plan.name, names, number, kept[side])
                        continue
                    servers = self._servers(plan, side, topic)
                    with _ended(servers):
                        self._work(plan.name, names, number, Stage(servers, plan.shape, plan.load))
        shutil.rmtree(self.directory / topic)  # after a failure the files stay, so that its cause can be found

    def _source(self, plan: Plan, topic: str) -> str:
        """Make and fill a topic that sides read; return its name."""
        create_topic(self.bootstrap, topic, plan.shape.partitions, {"cleanup.policy": "compact"})
        self.say(f"{plan.name}: writing {plan.shape.keys} records")
        produce(self.bootstrap, topic, plan.shape.partitions, range(plan.shape.keys))
        return topic

    def _warm(self, plan: Plan, side: Side, topic: str, running: ExitStack) -> Stage:
        """Return a side that runs until the end of a plan."""
        servers = self._servers(plan, side, topic)
        running.enter_context(_ended(servers))
        servers.start()
        stage = Stage(servers, plan.shape, plan.load)
        self._work(plan.name, ("warm-up",), 0, stage)
        return stage

    def _work(self, plan: str, names: Sequence[str], number: int, stage: Stage) -> None:
        for name in names:
            watch = Watch()
            for result in WORKLOADS[name](stage):
                figures = ", ".join(f"{metric} {value:,.4g}" for metric, value in result.figures.items())
                self.say(f"{plan}, round {number}, {stage.side}: {result.work}: {figures}")
                self.measured.append(Measured(plan, number, stage.side, result.work, result.figures))
                self.records.append({**asdict(self.measured[-1]), "disturbance": watch.so_far()})
                watch = Watch()

    def _servers(self, plan: Plan, side: Side, topic: str) -> Servers:
        if side is Side.FLOOR:
            return EmptyHandlers(self.bootstrap, plan.shape, self.directory / topic / "floor", topic)
        if side in VARIANTS:
            return KafkaStreams(side, self.bootstrap, plan.shape, self.directory / topic / "peer", topic)
        if side in REDISES:
            store = FedRedis if plan.processor else Redis
            return store(side, self.bootstrap, plan.shape, self.directory / topic / side, topic)
        tree = self.before if side is Side.OURS_BEFORE else ROOT
        kind = SparkFleet if plan.processor and side is not Side.OURS_FOLLOWING else Fleet
        return kind(side, self.bootstrap, plan.shape, self.directory / topic / side, topic, tree)


@contextmanager
def _ended(servers: Servers) -> Iterator[None]:
    """Stop the servers at the end; kill them after an error."""
    try:
        yield
    except BaseException:
        servers.kill()
        raise
    servers.stop()


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as it is written into a report."""
    return {**asdict(plan), "work": {str(side): names for side, names in plan.work.items()}}
