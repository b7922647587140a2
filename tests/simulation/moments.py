"""Readers of moments: keys of several partitions, asked straight at nodes, which must all be of one batch.

The truth is where each batch ended: `SimulatedProcessor.batches`. Their randomness is their own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from statehouse.contract.batch_cuts import is_kept
from statehouse.contract.moments import NEWEST, Asked, MomentBound, MomentToken, again
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.kafka import Kafka
from tests.simulation.node import SimulatedNode
from tests.simulation.processor import SimulatedProcessor
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, LONGEST_DELAY_S, World

_READS_EVERY_S: Final = 0.2
_AGAIN_SHARE: Final = 0.4
_PARTS: Final = (1, 2, 3)
_ROUNDS: Final = 4
_SEEN_MAX: Final = 64


class _Part(NamedTuple):
    """A key to read, and the node that is asked for it."""

    node: SimulatedNode
    store: str
    partition: int
    key: str


class MomentReaders:
    """Read all the time."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        settings: SimulationSettings,
        processor: SimulatedProcessor,
        nodes: Mapping[str, SimulatedNode],
    ) -> None:
        self._world, self._kafka, self._settings = world, kafka, settings
        self._processor, self._nodes = processor, nodes
        self._rng = random.Random(f"moments of {world.seed}")
        self._seen: deque[tuple[str, int]] = deque(maxlen=_SEEN_MAX)
        """Stores, and batches of them that somebody has shown."""

    def start(self) -> None:
        """Begin."""
        self._next()

    def _next(self) -> None:
        self._world.loop.call_later(self._rng.expovariate(1 / _READS_EVERY_S), self._next)
        if self._seen and self._rng.random() < _AGAIN_SHARE:
            store, batch_id = self._rng.choice(self._seen)
            for part in self._drawn(store):
                self._ask_again(part, batch_id)
        elif parts := self._drawn(self._rng.choice(self._settings.stores).name):
            self._read(parts)

    def _drawn(self, store: str) -> list[_Part]:
        """Return keys of some partitions, and for each a node that holds it, if there is one."""
        rng, parts = self._rng, []
        partitions = self._kafka.changelogs[store, 0].spec.partition_count
        for partition in rng.sample(range(partitions), min(rng.choice(_PARTS), partitions)):
            log = self._kafka.changelogs[store, partition]
            holders = [
                node
                for _, node in sorted(self._nodes.items())
                if node.is_alive and node.is_listening and not node.is_frozen and log.task in node.running_since
            ]
            if holders:
                parts.append(_Part(rng.choice(holders), store, partition, rng.choice(self._keys_of(store, partition))))
        return parts

    def _keys_of(self, store: str, partition: int) -> list[str]:
        partitions = self._kafka.changelogs[store, partition].spec.partition_count
        keys = (f"k{number}" for number in range(100 * partitions))
        return [key for key in keys if partition_for(key.encode(), partitions) == partition][: self._settings.keys]

    def _read(self, parts: list[_Part]) -> None:
        """Read all parts of the newest batch that they share."""
        found: list[int | None] = []
        for part in parts:
            try:
                found.append(self._ask(part, NEWEST))
            except LookupFailure as failure:
                self._refused(failure)
                return
        newest = max(each for each in found if each is not None)
        for _ in range(_ROUNDS):
            step = again(found, newest)
            if step is None:
                self._world.counts["moments: agreed"] += len(parts) > 1
                self._seen.append((parts[0].store, newest if found[0] is None else found[0]))
                return
            asked = Asked.EXACTLY if step.exactly else Asked.AT_LEAST
            for place in step.parts:
                try:
                    found[place] = self._ask(parts[place], MomentBound(asked, MomentToken({"q": step.batch_id})))
                except LookupFailure as failure:
                    self._refused(failure)
                    if failure.reason is not Reason.MOMENT_GONE:
                        return
                    found[place] = None

    def _ask_again(self, part: _Part, batch_id: int) -> None:
        """Read a batch that somebody has shown: each that had it whole, in time, keeps it as long as others do."""
        try:
            self._ask(part, MomentBound(Asked.EXACTLY, MomentToken({"q": batch_id})))
        except LookupFailure as failure:
            self._refused(failure)
            if failure.reason is Reason.MOMENT_GONE and self._must_have(part, batch_id):
                self._world.break_rule(
                    "a batch that is kept is kept by all", f"{part.node.name}, {part.store}: {failure}"
                )
        else:
            self._world.counts["moments: found again"] += 1

    def _ask(self, part: _Part, bound: MomentBound) -> int:
        """Return the batch of a node's answer, which is held against the truth."""
        request = query_service_pb2.GetRequest(
            store=part.store,
            key=types_pb2.Key(text=part.key),
            freshness=types_pb2.Freshness(moment=bound.to_proto()),
            raw=True,
        )
        response = query_service_pb2.GetResponse.FromString(part.node.answer(request))
        stamp, log = response.replica, self._kafka.changelogs[part.store, part.partition]
        where = f"{part.node.name} for {part.store}/{part.key}, batch {stamp.moment.batch_id}"
        end = self._end(part, stamp.moment.batch_id)
        value = response.value.raw if response.found else None
        if value != log.value_at(part.key.encode(), end):
            self._world.break_rule("a moment is its batch", f"{where}: {value!r} is not of {end}")
        least, exactly = bound.least("q"), bound.exactly("q")
        if stamp.moment.batch_id < least or exactly not in {None, stamp.moment.batch_id}:
            self._world.break_rule("a read is of the batch that it asks for", f"{where}: {bound}")
        self._world.counts["moments: answered"] += 1
        return stamp.moment.batch_id

    def _end(self, part: _Part, batch_id: int) -> int:
        return self._processor.batches[part.store, batch_id][part.partition]

    def check_quiet_fleet(self) -> None:
        """Every replica shows the newest batch, of a log into which nobody writes."""
        for (store, partition), log in self._kafka.changelogs.items():
            for _, node in sorted(self._nodes.items()):
                if node.is_alive and log.task in node.running_since:
                    try:
                        self._ask(_Part(node, store, partition, self._keys_of(store, partition)[0]), NEWEST)
                    except LookupFailure as failure:
                        self._world.break_rule("a quiet fleet shows its newest batch", f"{node.name}: {failure}")

    def _must_have(self, part: _Part, batch_id: int) -> bool:
        """Whether a node has read a partition at its end, undisturbed, since before a batch ended there."""
        node, log = part.node, self._kafka.changelogs[part.store, part.partition]
        known = node.moments.of(part.store)
        replica = node.replicas[log.task].of(log.spec, part.partition)
        if replica is None or known.end(batch_id, part.partition) != self._end(part, batch_id):
            return False  # an end that was asked for too late names nothing
        # It asks for the log's end once an interval; the answer takes a message each way, and so does what is written.
        since = self._processor.ended_at[batch_id] - self._settings.confirm_interval_s - 4 * LONGEST_DELAY_S
        return (
            is_kept(batch_id, self._processor.batch_id)
            and node.running_since[log.task] < since
            and node.undisturbed_since < since
            and self._world.net.is_well(node.machine, KAFKA, since)
        )

    def _refused(self, failure: LookupFailure) -> None:
        self._world.counts[f"moments: {failure.reason.name}"] += 1
