"""How much a slow and a frozen node delay reads that allow a standby, measured at a router of real processes.

The first lookups that meet such a node wait for the hedge; then the router asks the node last. If these are fewer than
one in a hundred, the p99 stays below twice the healthy p99 plus the hedge delay. By hand, on a machine that does
nothing else: `python -m pytest tests/robustness/test_late_nodes.py -m long`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

from bench.machine import ProcessorTime
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.robustness.figures import percentile
from tests.robustness.history import MAX_LAG, MAX_STALENESS, History, LookupRecord, Recorder
from tests.robustness.report import machine
from tests.robustness.traffic import Keys, Traffic
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.fleet import STORE, Fleet
from tests.support.metrics import Scrape, scrape
from tests.support.polling import poll_until

NODES: Final = ("n1", "n2", "n3")
PARTITIONS: Final = 12
RATE: Final = 100
WARM_UP_S: Final = 10.0
PHASE_S: Final = 35.0
SLOWER_BY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time and what the router had counted at both its ends; times as the recorder's.

    `others`: partitions with an active that is well all the time; what their lookups suffer is the machine's doing.
    """

    name: str
    others: frozenset[int]
    began_at: float
    ended_at: float
    before: Scrape
    after: Scrape
    hedge_after_ms: float
    busy_percent: float

    def counted(self, metric: str, **labels: str) -> float:
        sample = f"statehouse_router_{metric}_total"
        return self.after.value(sample, **labels) - self.before.value(sample, **labels)

    @property
    def calls_per_lookup(self) -> float:
        return self.counted("attempts") / self.counted("lookups")

    def p(self, share: float, lookups: Iterable[LookupRecord]) -> float:
        """Return a percentile of how long those of them took, in milliseconds, that were due in it."""
        took_ms = [1_000 * each.took_s for each in lookups if self.began_at <= each.due_at < self.ended_at]
        return percentile(sorted(took_ms), share)

    def row(self, history: History) -> str:
        others = [lookup for lookup in history.lookups if lookup.partition in self.others]
        times = [self.p(share, history.lookups) for share in (0.5, 0.9, 0.99, 0.999)] + [self.p(0.99, others)]
        hedges = [self.counted("hedges", outcome=outcome) for outcome in ("won", "lost", "refused")]
        found = [self.counted("suspicions", state=state) for state in ("slow", "silent", "down")]
        return (
            f"| {self.name} | {self.counted('lookups'):,.0f} | {' | '.join(f'{each:.1f}' for each in times)} "
            f"| {self.hedge_after_ms:.1f} | {self.calls_per_lookup:.3f} "
            f"| {hedges[0]:.0f}, {hedges[1]:.0f}, {hedges[2]:.0f} | {found[0]:.0f}, {found[1]:.0f}, {found[2]:.0f} "
            f"| {self.busy_percent:.0f} |"
        )


HEAD: Final = (
    "| phase | lookups | p50 ms | p90 ms | p99 ms | p99.9 ms | p99 ms of others | hedge after ms | calls per lookup "
    "| hedges won, lost, refused | found slow, silent, down | processors busy % |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


class LateNodes:
    """Three nodes, each active for a third of the partitions and a standby for another; the first behind a proxy."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        self._fleet, self._directory = fleet, directory
        self.keys = Keys.spread(fleet.partition_of, PARTITIONS, 4)
        self.phases: list[Phase] = []
        self._metrics_port = free_port()
        self._parts = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            fleet, advertised_port = self._fleet, free_port()
            fleet.put(dict.fromkeys(self.keys.existing, "1"))
            self.router = fleet.router(metrics_port=self._metrics_port)
            self.nodes = {name: fleet.node(name) for name in NODES[1:]}
            self.nodes[NODES[0]] = fleet.node(NODES[0], advertised_port=advertised_port)
            self.link = parts.enter_context(FaultProxy(self.nodes[NODES[0]].port, port=advertised_port))
            holders = [(NODES[number % 3], NODES[(number + 1) % 3]) for number in range(PARTITIONS)]
            fleet.assign(*(TaskAssignment(active, (standby,)) for active, standby in holders))
            fleet.wait_running(self.nodes.values())
            self.wait_usable()
            self._recorder = parts.enter_context(Recorder(self._directory / "history.jsonl"))
            targets = {"router": self.router.target}
            bounds = (MAX_LAG, MAX_STALENESS)
            traffic = Traffic(targets, self.keys, fleet.partition_of, RATE, self._recorder, bounds)
            self._traffic = parts.enter_context(traffic)
            self._parts = parts.pop_all()
        self._traffic.wait(WARM_UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    @property
    def history(self) -> History:
        """All lookups, once it is over."""
        return History.load(self._directory / "history.jsonl")

    @contextmanager
    def phase(self, name: str, late_node: str = "") -> Iterator[None]:
        """Count from here on; what begins in the context lasts until the phase has had its time."""
        others = frozenset(number for number in range(PARTITIONS) if NODES[number % 3] != late_node)
        before, began_at, processors = scrape(self._metrics_port), self._recorder.now, ProcessorTime.now()
        hedge_after_ms = self._hedge_after_ms()
        yield
        self._traffic.wait(PHASE_S)
        busy = ProcessorTime.now().since(processors).busy_percent
        after = scrape(self._metrics_port)
        self.phases.append(Phase(name, others, began_at, self._recorder.now, before, after, hedge_after_ms, busy))

    def wait_usable(self) -> None:
        """Wait until the router would ask every replica in its turn."""
        poll_until(lambda: all(map(self._is_usable, range(PARTITIONS))), 60, "the router to know that all is well")

    def _is_usable(self, partition: int) -> bool:
        key = types_pb2.Key(text=self._fleet.keys_in(partition)[0])
        try:
            place = self.router.call(
                self.router.fleet.LocateKey, fleet_service_pb2.LocateKeyRequest(store=STORE, key=key)
            )
        except LookupFailure:
            return False
        return [candidate.eligible for candidate in place.candidates] == [True, True]

    def _hedge_after_ms(self) -> float:
        lookup = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=self.keys.existing[0]))
        request = fleet_service_pb2.ExplainGetRequest(lookup=lookup)
        told: fleet_service_pb2.ExplainGetResponse = self.router.call(self.router.fleet.ExplainGet, request)
        return told.hedge_after_ms


@pytest.mark.long
@pytest.mark.timeout(400)
def test_late_nodes_cost_little(
    kafka: EmbeddedKafka,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        Fleet(
            kafka.bootstrap,
            unique_name("app"),
            tmp_path,
            partitions=PARTITIONS,
            heartbeat_interval_ms=1_000,
            session_timeout_ms=10_000,
        ) as fleet,
        LateNodes(fleet, tmp_path) as run,
    ):
        with run.phase("healthy"):
            pass
        with run.phase("one node slow", NODES[0]):
            run.link.delay(SLOWER_BY_S, Direction.DOWNSTREAM)
        run.link.heal()
        run.wait_usable()
        with run.phase("healthy again"):
            pass
        with run.phase("one node frozen", NODES[1]):
            run.nodes[NODES[1]].freeze()
        run.nodes[NODES[1]].thaw()
        run.wait_usable()
    history = run.history
    with capsys.disabled():
        sys.stdout.write("\n".join(["", machine(), HEAD, *(phase.row(history) for phase in run.phases), ""]))
    assert [lookup for lookup in history.lookups if not lookup.answered] == []
    # The quieter of the two, as what disturbs one of them says nothing about the nodes.
    healthy_ms = min(phase.p(0.99, history.lookups) for phase in run.phases[::2])
    for late in run.phases[1::2]:
        late_ms, limit_ms = late.p(0.99, history.lookups), 2 * healthy_ms + late.hedge_after_ms
        assert late_ms <= limit_ms, f"{late.name}: p99 {late_ms:.1f} ms, the limit is {limit_ms:.1f}"
        assert late.calls_per_lookup <= 1.1, late.name
