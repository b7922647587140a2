"""Statehouse: two nodes with standbys, two routers, and the processor; asked by the Python client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.shape import Shape, Side
from bench.sides.ours import SparkFleet
from bench.truth import ACCOUNTS, COUNTERS, SOURCE
from bench.truth.checks import Shown
from bench.truth.systems.system import BOUND_S, NoAnswer, Pair, Read, Refused, System, Way
from statehouse.client import Answer, Client, Freshness, Lookup
from statehouse.client.batches import LookupOutcome
from statehouse.errors import LookupFailure, Reason
from statehouse.errors.reasons import reason_from_number
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

SHAPE: Final = Shape(keys=0, partitions=4)
BOUND: Final = Freshness(
    # What the source held `max_processor_age_ms` ago is in the changelog, and the replica was at its end
    # `max_staleness_ms` ago.
    max_processor_age_ms=int(600 * BOUND_S),
    max_input_backlog=0,
    max_lag=0,
    max_staleness_ms=int(400 * BOUND_S),
)
_OF_BOUNDS: Final = {
    Reason.LAG_EXCEEDS_BOUND,
    Reason.STALENESS_EXCEEDS_BOUND,
    Reason.PROCESSOR_AGE_EXCEEDS_BOUND,
    Reason.INPUT_BACKLOG_EXCEEDS_BOUND,
}
_PLAIN: Final = Freshness()


class _Fleet(SparkFleet):
    """A fleet whose nodes and router reach the broker by a link."""

    _topology = "bench.truth.topology"

    def __init__(self, bootstrap: str, link: str, directory: Path) -> None:
        self._link = link
        super().__init__(Side.OURS, bootstrap, SHAPE, directory, SOURCE)
        other_port = free_port()
        self.routers = (self._router, self._router_process("other-router", other_port))
        self.targets = f"{self.router_target},{LOOPBACK}:{other_port}"

    @property
    def _serving(self) -> dict[str, object]:
        return {**super()._serving, "bootstrap": self._link}

    def processes(self) -> Sequence[ManagedProcess]:
        return (*super().processes(), self.routers[1])

    @property
    def processor(self) -> ManagedProcess:
        return self._controller


class Ours(System):
    """See the module."""

    def __init__(self, bootstrap: str, link: FaultProxy, directory: Path) -> None:
        self.link = link
        self._fleet = _Fleet(bootstrap, link.address, directory)
        self._client = Client(self._fleet.targets)
        self.ways = {
            "Statehouse, moments": Way(self._of_moment(_PLAIN), self._of_moment(BOUND)),
            "Statehouse, plain": Way(self._plain(_PLAIN), self._plain(BOUND)),
        }

    @property
    def serving(self) -> Sequence[ManagedProcess]:
        """See System."""
        return (*self._fleet.nodes.values(), *self._fleet.routers)

    @property
    def writer(self) -> ManagedProcess:
        """See System."""
        return self._fleet.processor

    @property
    def checkpoints(self) -> Path:
        """See System."""
        return self._fleet.spark.checkpoints

    def start(self) -> None:
        """See System."""
        self._fleet.spawn()

    def stop(self) -> None:
        """See System."""
        self._client.close()
        self._fleet.stop()

    def _plain(self, freshness: Freshness) -> Read:
        def read(pair: Pair, timeout_s: float) -> Shown:
            return _shown(self._client.batch_get(_lookups(pair, freshness), timeout=timeout_s))

        return read

    def _of_moment(self, freshness: Freshness) -> Read:
        def read(pair: Pair, timeout_s: float) -> Shown:
            with self._client.moment() as moment:
                return _shown(moment.batch_get(_lookups(pair, freshness), timeout=timeout_s))

        return read


def _lookups(pair: Pair, freshness: Freshness) -> list[Lookup]:
    return [Lookup(store, account, freshness) for store in (ACCOUNTS, COUNTERS) for account in pair]


def _shown(outcomes: Sequence[LookupOutcome]) -> Shown:
    values: list[int | None] = []
    for each in outcomes:
        if not isinstance(each, Answer):
            raise (Refused if is_refusal(each) else NoAnswer)(str(each))
        values.append(int(str(each.value)) if each.found else None)
    return Shown((values[0], values[1]), (values[2], values[3]))


def is_refusal(failure: LookupFailure) -> bool:
    """Whether a bound could not be held, at least at one replica."""
    reasons = {failure.reason, *(reason_from_number(candidate.reason) for candidate in failure.candidates)}
    return bool(reasons & _OF_BOUNDS)
