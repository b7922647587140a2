"""Compares all stores with their changelogs in the background, one partition after the other, at a bounded rate.

It is `statehouse verify` without an end. It names the node and the partition whose replica is wrong, and looks no
closer: keys are nothing for logs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from router.telemetry.metrics import RouterMetrics
from statehouse.cli.sum_calls import SumCalls
from statehouse.cli.verification import CheckedPartition, Verification, Verifier
from statehouse.client.answers import Fleet, Partition
from statehouse.client.conversion import from_fleet, from_partitions
from statehouse.contract.store_sums import BUCKETS, SUMMED_KINDS
from statehouse.errors import LookupFailure
from statehouse.rpc.credentials import ClientTls
from statehouse.v1 import fleet_service_pb2

log = structlog.get_logger(__name__)

_PAUSE_MIN_S: Final = 1.0
"""Between two rounds, however long they take."""


class BackgroundVerifier:
    """Compares the stores that can be, again and again. Lives on the event loop.

    `fleet()` and `partitions(store)` tell what the router knows, as FleetService does; they may raise LookupFailure.
    `tls`: what nodes are called with.
    """

    def __init__(
        self,
        interval_s: float,
        bytes_per_second: int,
        fleet: Callable[[], fleet_service_pb2.GetFleetResponse],
        partitions: Callable[[str], fleet_service_pb2.ListPartitionsResponse],
        metrics: RouterMetrics,
        tls: ClientTls | None,
    ) -> None:
        self._interval_s, self._fleet, self._partitions, self._metrics = interval_s, fleet, partitions, metrics
        self._how, self._tls = Verification(BUCKETS, bytes_per_second), tls
        self._wrong: dict[tuple[str, int], Sequence[str]] = {}

    async def run(self) -> None:
        """Compare until cancelled."""
        stopped = threading.Event()
        with SumCalls(self._tls, lambda _order, _copy, _progress: None) as calls:
            try:
                while True:
                    began = time.monotonic()
                    await self._round(calls, stopped)
                    left_s = began + self._interval_s - time.monotonic()
                    await asyncio.sleep(max(_PAUSE_MIN_S, left_s))
            finally:
                stopped.set()

    async def _round(self, calls: SumCalls, stopped: threading.Event) -> None:
        try:
            fleet = from_fleet(self._fleet())
            stores = [each for each in fleet.stores if each.kind in SUMMED_KINDS and not each.no_moments]
        except LookupFailure as failure:
            log.debug("stores can't be compared yet", error=str(failure))
            return
        for store in stores:
            places = self._from_threads(store.name)
            verifier = Verifier(self._how, calls, places, stopped)
            for partition in range(store.partition_count):
                await self._check(verifier, store.name, partition)

    def _from_threads(self, store: str) -> Callable[[], tuple[Sequence[Partition], Fleet]]:
        """Return what asks the router for a store's places from any thread."""
        loop = asyncio.get_running_loop()

        async def found() -> tuple[Sequence[Partition], Fleet]:
            return from_partitions(self._partitions(store)), from_fleet(self._fleet())

        return lambda: asyncio.run_coroutine_threadsafe(found(), loop).result()

    async def _check(self, verifier: Verifier, store: str, partition: int) -> None:
        try:
            found = await asyncio.to_thread(verifier.check, store, partition)
        except LookupFailure as failure:
            found = CheckedPartition(store, partition, obstacle=failure)
        self._note(found)

    def _note(self, found: CheckedPartition) -> None:
        """Count and log what was found. What could not be checked is as it was."""
        about = {"store": found.store, "partition": found.partition}
        if found.obstacle is not None:
            self._metrics.verified(found.store, "unchecked")
            log.info("replicas can't be compared for now", **about, reason=found.obstacle.reason.name)
            return
        self._metrics.verified(found.store, "differs" if found.buckets else "equal")
        self._wrong[found.store, found.partition] = found.wrong_nodes
        wrong = (name for (store, _), names in self._wrong.items() if store == found.store for name in names)
        self._metrics.wrong_replicas(found.store, Counter(wrong))
        if found.buckets:
            log.error(
                "replicas differ: `statehouse verify` names the keys, and with --restore mends them",
                **about,
                nodes=found.wrong_nodes,
                entries=len({each.key for each in found.differences}),
                batch=None if found.moment is None else str(found.moment),
            )
