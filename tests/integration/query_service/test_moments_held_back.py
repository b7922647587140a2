"""A store of a million keys is rewritten ten times: what its kept moments hold back on disk stays within the bound.

Two nodes follow the same changelog. One keeps moments; the other takes the store for another program's, and keeps none.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Final

import pytest
import structlog

from bench.usage import Memory
from processor.reports.commits import StoreChangelog
from query_service.stores.kept_moments import DISK_BYTES
from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.folder_size import size_of
from tests.support.meanwhile import Meanwhile
from tests.support.metrics import scrape
from tests.support.polling import poll_until

log = structlog.get_logger(__name__)

KEYS, REWRITES, BATCH, VALUE_BYTES = 1_000_000, 10, 20_000, 100
AHEAD: Final = 10
"""So many batches are written before the nodes must have them."""
LOOK_S: Final = 0.2
FOLLOWS_S: Final = 300.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """What a node has at a time. Bytes of its state on disk and of its memory; of its moments the bytes since the
    oldest."""

    disk: int
    memory: int
    moments: int
    held: int


class Observed:
    """A node with the store, and what was seen of it meanwhile."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.samples: list[Sample] = []
        self.node: ServerProcess = fleet.node("n1", engine="go", metrics_port=(port := free_port()))
        self._port = port
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([self.node], 60.0)

    def look(self) -> None:
        figures = scrape(self._port)
        self.samples.append(
            Sample(
                size_of(self._fleet.directory / "n1"),
                Memory.of([self.node.pid]).pss,
                int(figures.value("statehouse_node_moments_kept")),
                int(figures.value("statehouse_node_moments_written_bytes")),
            )
        )

    def is_at_end(self) -> bool:
        (store,) = (store for task in self.node.node().tasks for store in task.stores)
        return store.HasField("lag") and store.lag == 0

    def most(self, begun: int) -> Sample:
        """Return the most of each since a sample."""
        seen = self.samples[begun:]
        return Sample(*(max(getattr(each, name) for each in seen) for name in ("disk", "memory", "moments", "held")))


def batches(rng: random.Random) -> Iterator[list[Placed]]:
    """Yield what each batch writes: all keys in turn, and then all of them in another order, again and again."""
    noise = rng.randbytes(MIB)
    keys = [b"key-%09d" % number for number in range(KEYS)]
    for _ in range(1 + REWRITES):
        for first in range(0, KEYS, BATCH):
            starts = [rng.randrange(MIB - VALUE_BYTES) for _ in range(BATCH)]
            yield [
                Placed(STORE, 0, key, noise[start : start + VALUE_BYTES])
                for key, start in zip(keys[first : first + BATCH], starts, strict=True)
            ]
        rng.shuffle(keys)


@pytest.fixture
def fleets(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Sequence[Fleet]]:
    """One that keeps moments, and one that keeps none, of the same changelog."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    with (
        Fleet(kafka.bootstrap, unique_name("with"), tmp_path / "with", partitions=1, committed=True) as one,
        Fleet(kafka.bootstrap, unique_name("without"), tmp_path / "without", partitions=1) as other,
    ):
        other.stores = MappingProxyType({STORE: replace(other.spec, changelog_topic=one.changelog)})
        yield one, other


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_moments_of_a_store_that_is_rewritten_hold_back_no_more_than_the_bound(fleets: Sequence[Fleet]) -> None:
    with_moments, without = observed = [Observed(fleet) for fleet in fleets]
    changelog = StoreChangelog(STORE, fleets[0].changelog, 1)
    writer = BatchWriter(fleets[0].bootstrap, fleets[0].application_id, [changelog], "q", query=STORE)

    def watch(stop: threading.Event) -> None:
        while not stop.wait(LOOK_S):
            for each in observed:
                each.look()

    begun = 0
    with Meanwhile(watch, "watch").going_on():
        for batch_id, records in enumerate(batches(random.Random(1))):
            writer.write(batch_id, records)
            if batch_id % AHEAD == 0:
                poll_until(lambda: all(each.is_at_end() for each in observed), FOLLOWS_S, "the nodes to follow")
            if batch_id == KEYS // BATCH:
                begun = len(with_moments.samples)  # from here on keys are rewritten
        poll_until(lambda: all(each.is_at_end() for each in observed), FOLLOWS_S, "the nodes to follow")
    writer.close()
    most, plain = with_moments.most(begun), without.most(begun)
    middle, of_plain = (median(each.disk for each in node.samples[begun:]) for node in observed)
    log.info(
        "held back by moments",
        records=KEYS * (1 + REWRITES),
        samples=len(with_moments.samples) - begun,
        disk_mib_most=(most.disk // MIB, plain.disk // MIB),
        disk_mib_median=(middle // MIB, of_plain // MIB),
        memory_mib_most=(most.memory // MIB, plain.memory // MIB),
        moments_most=most.moments,
        held_mib_most=round(most.held / MIB, 1),
    )
    assert plain.moments == 0
    assert most.moments > 1
    assert most.held <= DISK_BYTES
    # Files have more than entries: indexes and filters.
    assert middle <= of_plain + 1.1 * DISK_BYTES
    # While a compaction copies what is held back, it is there twice.
    assert most.disk <= plain.disk + 2 * DISK_BYTES
