"""Fleets for planner tests: made up from nothing, or grown by following the planner's own decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

from hypothesis import strategies as st

from processor.ownership.planning.model import NodeView, PlannerSettings, Readiness, ReplicaView, readiness_of
from processor.ownership.planning.planner import Plan, plan
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId

CAUGHT_UP = ReplicaView(restored=True, lag=0)
BEHIND = 1_000_000


@dataclass(frozen=True)
class Situation:
    """An input of the planner."""

    tasks: list[TaskId]
    nodes: dict[str, NodeView]
    current: dict[TaskId, TaskAssignment]
    settings: PlannerSettings
    lingering: frozenset[TaskId] = frozenset()
    ephemeral: frozenset[TaskId] = frozenset()

    def plan(self) -> Plan:
        """Plan it."""
        return plan(self.tasks, self.nodes, self.current, self.settings, self.lingering, self.ephemeral)

    def after(self, outcome: Plan) -> Situation:
        """The same reports, with the outcome in force and nothing lingering."""
        return Situation(self.tasks, self.nodes, dict(outcome.tasks), self.settings, ephemeral=self.ephemeral)

    @property
    def logged(self) -> list[TaskId]:
        """The tasks that have copies."""
        return [task for task in self.tasks if task not in self.ephemeral]

    @property
    def accepting(self) -> set[str]:
        """Nodes that may be given something: those that stay, if any does."""
        staying = {node for node, view in self.nodes.items() if not view.leaving}
        return {node for node in staying if not self.nodes[node].damped} or staying or set(self.nodes)

    @property
    def capacities(self) -> dict[str, int]:
        """Capacities of those nodes."""
        return {node: self.nodes[node].capacity for node in self.accepting}

    def readiness(self, task: TaskId, node: str) -> Readiness:
        """How near a live node is to serving a task."""
        return readiness_of(self.nodes[node].replicas.get(task), self.settings.acceptable_recovery_lag)


@st.composite
def situations(draw: st.DrawFn, *, everybody_stays: bool = False) -> Situation:
    """Anything at all: reports and assignments that no history need explain.

    Hypothesis draws the sizes and a seed for the rest: it would take longer over each detail than a plan takes.
    """
    tasks = [TaskId(sub, part) for sub in range(draw(st.integers(1, 2))) for part in range(draw(st.integers(1, 5)))]
    names = [f"n{number}" for number in range(draw(st.integers(1, 6)))]
    settings = PlannerSettings(
        num_standby_replicas=draw(st.integers(0, 3)),
        acceptable_recovery_lag=10_000,
        max_warmup_replicas=draw(st.integers(0, 3)),
    )
    rng = Random(draw(st.integers(0, 2**32)))
    nodes = {
        name: NodeView(
            rack=rng.choice(["", "a", "b", "c"]),
            replicas={task: _view(rng) for task in _some(rng, tasks)},
            leaving=not everybody_stays and rng.random() < 0.15,
            damped="" if everybody_stays or rng.random() > 0.2 else f"{name} is held back: it keeps restarting",
            capacity=rng.choice([1, 1, 2, 7]),
        )
        for name in names
    }
    current = {}
    for task in _some(rng, tasks):
        active, *others = rng.sample([*names, "gone1", "gone2"], len(names) + 2)
        standbys, warm_ups = rng.randint(0, 3), rng.randint(0, 2)
        current[task] = TaskAssignment(active, tuple(others[:standbys]), tuple(others[standbys:][:warm_ups]), "before")
    ephemeral = frozenset(task for task in tasks if task.sub_topology == 1 and rng.random() < 0.5)
    return Situation(tasks, nodes, current, settings, frozenset(_some(rng, tasks)), ephemeral)


def _view(rng: Random) -> ReplicaView:
    return ReplicaView(rng.random() < 0.6, rng.choice([None, 0, 0, 5, 10_000, 10_001, BEHIND]))


def _some(rng: Random, tasks: Sequence[TaskId]) -> list[TaskId]:
    return rng.sample(tasks, rng.randint(0, len(tasks)))


@dataclass
class SimulatedFleet:
    """Nodes that do what plans tell them and report it; restoring takes as long as a test wants."""

    tasks: list[TaskId]
    settings: PlannerSettings
    racks: dict[str, str] = field(default_factory=dict)
    """Of the nodes that live."""
    capacities: dict[str, int] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    disks: dict[str, dict[TaskId, ReplicaView]] = field(default_factory=dict)
    current: dict[TaskId, TaskAssignment] = field(default_factory=dict)
    ephemeral: frozenset[TaskId] = frozenset()

    def join(self, node: str, rack: str = "", capacity: int = 1) -> None:
        """A node starts, with what it kept on disk."""
        self.racks[node], self.capacities[node] = rack, capacity
        self.disks.setdefault(node, {})

    def die(self, node: str) -> None:
        """A node stops; its disk stays and falls behind."""
        del self.racks[node], self.capacities[node]
        self.leaving.discard(node)
        self.disks[node] = {task: ReplicaView(restored=False, lag=20_000) for task in self.disks[node]}

    @property
    def situation(self) -> Situation:
        """What the nodes report now."""
        nodes = {
            node: NodeView(rack, dict(self.disks[node]), node in self.leaving, capacity=self.capacities[node])
            for node, rack in self.racks.items()
        }
        return Situation(self.tasks, nodes, self.current, self.settings, ephemeral=self.ephemeral)

    def step(self) -> tuple[Situation, Plan]:
        """Plan once and put it in force; what a node loses it keeps on disk, what it gets it begins to restore."""
        before = self.situation
        outcome = before.plan()
        self.current = dict(outcome.tasks)
        for task, holders in self.current.items():
            for node in self.racks:
                held = self.disks[node].get(task)
                if node in holders.replicas:
                    self.disks[node].setdefault(task, ReplicaView(restored=False, lag=BEHIND))
                elif held is not None and held.restored:
                    self.disks[node][task] = ReplicaView(restored=False, lag=held.lag)
        return before, outcome

    def restore(self) -> None:
        """Everything assigned catches up."""
        for task, holders in self.current.items():
            for node in holders.replicas:
                if node in self.racks:
                    self.disks[node][task] = CAUGHT_UP

    def settle(self, rounds: int = 400) -> int:
        """Plan and restore until nothing changes; return how many actives moved on the way."""
        moved = 0
        for _ in range(rounds):
            before, outcome = self.step()
            moved += sum(outcome.tasks[t].active != a.active for t, a in before.current.items())
            self.restore()
            if outcome.tasks == before.current and self.situation.plan().tasks == self.current:
                return moved
        raise AssertionError(f"not settled after {rounds} plans")

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Actives and all replicas of each live node, of tasks that have copies."""
        actives: Counter[str] = Counter(dict.fromkeys(self.racks, 0))
        replicas: Counter[str] = Counter(dict.fromkeys(self.racks, 0))
        for holders in (self.current[task] for task in self.situation.logged):
            actives[str(holders.active)] += 1
            replicas.update(holders.replicas)
        return actives, replicas


def exact_shares(total: int, most: int, capacities: Mapping[str, int]) -> dict[str, Fraction]:
    """What each node is due of a total, in proportion and `most` at most; the rest is the others', in proportion."""
    shares: dict[str, Fraction] = {}
    for node in sorted(capacities, key=lambda node: -capacities[node]):
        open_ = sum(capacity for other, capacity in capacities.items() if other not in shares)
        due = Fraction((total - sum(shares.values())) * capacities[node], open_)
        if due <= most:
            left = total - sum(shares.values())
            rest = capacities.keys() - shares.keys()
            return shares | {other: Fraction(left * capacities[other], open_) for other in rest}
        shares[node] = Fraction(most)
    return shares


def skew(counts: Mapping[str, int]) -> int:
    """Difference between the fullest and the emptiest node."""
    return max(counts.values()) - min(counts.values())
