"""The processor, as the commits topic shows it: it reports for each store, and falls silent for a while now and then.

All writes between two reports are a batch, whose parts come at different times. A few reports don't say where it
ended, and a few ask for the ends while the next batch is written, as of a driver that nobody has fenced yet.

Its randomness is its own, so that what it does changes nothing in what else happens in a run. It also asks nodes,
without a router, for answers that are bounded by its age.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.checks import Checks
from tests.simulation.kafka import Changelog, Kafka
from tests.simulation.node import SimulatedNode
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, World

_REPORTS_EVERY_S = 1.0
_SILENCE_SHARE = 0.1
_SILENCE_S = (3.0, 20.0)
_ARRIVES_WITHIN_S = 0.3
_LATE_SHARE = 0.1
_LATE_S = 0.4
_UNSURE_SHARE = 0.05
_FIRST_BATCH_AT_S = (1.0, 20.0)
_FIRST_BATCH_TAKES_S = 2.0
_FIRST_BATCH_RECORDS = 400
_ASKS_EVERY_S = 0.5
_BOUNDS = (
    types_pb2.Freshness(max_processor_age_ms=2_000),
    types_pb2.Freshness(max_processor_age_ms=5_000, max_input_backlog=2),
    types_pb2.Freshness(max_input_backlog=0),
)


@dataclass(frozen=True)
class Report:
    """A record of the commits topic, and when it was written."""

    commit: commits_pb2.Commit
    at: float


class SimulatedProcessor:
    """Reports, has the reports reach nodes that are in touch with Kafka, and asks."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        settings: SimulationSettings,
        nodes: Mapping[str, SimulatedNode],
    ) -> None:
        self._world, self._kafka, self._checks, self._settings, self._nodes = world, kafka, checks, settings, nodes
        self._rng = random.Random(f"processor of {world.seed}")
        self._log: list[Report] = []
        self.built: set[str] = set()
        """The stores whose first batch is committed."""
        self.is_sure = False
        """Whether each report says where its batch ended; else most do."""
        self.batch_id = 1
        """Of the batch that is written now."""
        self.batches: dict[tuple[str, int], dict[int, int]] = {}
        """By store and batch, where that ended in each partition."""
        self.ended_at: dict[int, float] = {}
        """When each batch had been written."""

    def start(self, write: Callable[[Changelog, int], None]) -> None:
        """Begin. Where nothing is there yet, first batches come soon; `write` writes so many records."""
        for store in self._settings.stores:
            if self._settings.first_records:
                self.built.add(store.name)
            else:
                at = self._rng.uniform(*_FIRST_BATCH_AT_S)
                self._world.loop.call_later(at, self._begin_first_batch, store.name, write)
        for log in self._kafka.changelogs.values():
            log.first_batch_end = log.end if self.built else None
        self._report()
        self._arrive()
        self._ask()

    def _begin_first_batch(self, store: str, write: Callable[[Changelog, int], None]) -> None:
        """Commit one partition after the other, some with nothing in them, and report when all are."""

        def write_part(log: Changelog) -> None:
            write(log, self._rng.choice((0, 1, _FIRST_BATCH_RECORDS)))
            log.first_batch_end = log.end

        def end() -> None:
            self.built.add(store)
            self._report_for([store])

        for (name, _), log in self._kafka.changelogs.items():
            if name == store:
                self._world.loop.call_later(self._rng.uniform(0.0, _FIRST_BATCH_TAKES_S), write_part, log)
        self._world.loop.call_later(_FIRST_BATCH_TAKES_S, end)

    def _report(self) -> None:
        rng = self._rng
        is_silent = rng.random() < _SILENCE_SHARE
        self._world.loop.call_later(rng.uniform(*_SILENCE_S) if is_silent else _REPORTS_EVERY_S, self._report)
        self._report_for(self._built(), is_late=self._rng.random() < _LATE_SHARE)

    def _built(self) -> list[str]:
        return [store.name for store in self._settings.stores if store.name in self.built]

    async def end_batch(self) -> None:
        """End the batch that is under way, which may be a long one, and let everybody hear of it."""
        self.is_sure = True
        self._report_for(self._built())
        await asyncio.sleep(3 * _ARRIVES_WITHIN_S)

    def _report_for(self, stores: Sequence[str], *, is_late: bool = False) -> None:
        ended, self.batch_id = self.batch_id, self.batch_id + 1
        self.ended_at[ended] = self._world.now
        for store in stores:
            self.batches[store, ended] = {each.partition: each.offset for each in self._ends_of(store)}
        if is_late:
            self._world.loop.call_later(_LATE_S, self._write_report, ended, stores)
        else:
            self._write_report(ended, stores)

    def _write_report(self, batch_id: int, stores: Sequence[str]) -> None:
        rng = self._rng
        is_moment = self.is_sure or rng.random() > _UNSURE_SHARE
        for store in stores:
            commit = commits_pb2.Commit(store=store, query_id="q", batch_id=batch_id, is_moment=is_moment)
            commit.idle = rng.random() < 0.5
            commit.changelog_ends.extend(self._ends_of(store))
            if rng.random() < 0.9:
                commit.input_backlog = rng.choice((0, 0, 1, 4))
            self._log.append(Report(commit, self._world.now))
            self._checks.reported(commit, self._world.now)

    def _ends_of(self, store: str) -> Iterator[commits_pb2.TopicOffset]:
        for (name, partition), log in self._kafka.changelogs.items():
            if name == store:
                yield commits_pb2.TopicOffset(topic=log.spec.changelog_topic, partition=partition, offset=log.end)

    def _arrive(self) -> None:
        """Bring what is new to each node; a new process, or one that lags far, finds the topic compacted."""
        self._world.loop.call_later(self._rng.uniform(0.0, _ARRIVES_WITHIN_S), self._arrive)
        for node in self._nodes.values():
            if node.is_alive and not node.is_frozen and self._world.net.is_open(KAFKA, node.machine):
                unread = self._log[max(node.commits_read, len(self._log) - len(self._settings.stores)) :]
                node.commits_read = len(self._log)
                for report in unread:
                    node.take_commit(report.commit, report.at)

    def _ask(self) -> None:
        rng = self._rng
        self._world.loop.call_later(rng.expovariate(1 / _ASKS_EVERY_S), self._ask)
        node = rng.choice(sorted(self._nodes.values(), key=lambda each: each.name)) if self._nodes else None
        store, number = rng.choice(self._settings.stores), rng.randrange(self._settings.keys)
        bound = rng.choice(_BOUNDS)
        if node is None or not node.is_alive or not node.is_listening or node.is_frozen:
            return
        request = query_service_pb2.GetRequest(
            store=store.name, key=types_pb2.Key(text=f"k{number}"), freshness=bound, raw=True
        )
        try:
            node.handle(request)
        except LookupFailure as failure:
            if failure.reason is Reason.PROCESSOR_AGE_EXCEEDS_BOUND:
                self._world.counts["refused by the processor's age"] += 1
                self._checks.refused_by_age(node, request)
        else:
            self._world.counts["answered within the processor's age"] += 1
