"""A restore of millions of records next to a partition that serves: memory is bounded, and lookups don't wait for it.

To be run by hand on a quiet machine (`pytest -m long -s`): it measures.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet
from tests.support.lookups import LookupLoad
from tests.support.polling import poll_until

MIB = 1024 * 1024
RECORDS = 2_000_000
BLOCK_CACHE_BYTES = 64 * MIB
WRITE_BUFFER_BYTES = 32 * MIB
# docs/memory.md: the cache, an open store and the restoring consumer's queue, and a tenth that the allocator keeps.
MAY_GROW_BYTES = 1.1 * (BLOCK_CACHE_BYTES + 0.4 * MIB + 64 * MIB)


@pytest.mark.feature("node-rebalances-goes")
@pytest.mark.feature("lookups-runs-stay")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_big_restore(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> None:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        served = fleet.keys_in(1, 1_000)
        fleet.put(dict.fromkeys(served, "x" * 84))
        produce_many(fleet)
        node = fleet.node("n1", block_cache_bytes=BLOCK_CACHE_BYTES, write_buffer_bytes=WRITE_BUFFER_BYTES)
        fleet.assign(TaskAssignment("elsewhere"), TaskAssignment("n1"))
        fleet.wait_running([node])

        with LookupLoad(f"127.0.0.1:{node.port}", STORE, served, rate=150) as load:
            poll_until(lambda: len(load.answers()) >= 1_000, 60, "lookups before the restore")
            with MemoryWatch(node.pid) as memory:
                before = resident(node.pid)
                quiet_until, began = time.monotonic(), time.monotonic()
                fleet.reassign(0, active="n1")
                fleet.wait_running([node], 600)
                took_s = time.monotonic() - began
            during = load.answers(quiet_until)
            quiet = [lookup for lookup in load.answers() if lookup.due_at < quiet_until]
            assert not load.failures
        quiet_p99_ms, p99_ms = (percentile_99([lookup.took_s * 1_000 for lookup in each]) for each in (quiet, during))
        sys.stdout.write(
            f"\n{RECORDS} records restored in {took_s:.1f} s: {RECORDS / took_s:,.0f} a second\n"
            f"resident: {before // MIB} MiB before, {max(memory.samples) // MIB} at most, {resident(node.pid) // MIB} "
            f"after (may grow by {MAY_GROW_BYTES / MIB:.0f})\n"
            f"lookups of the other partition: p99 {quiet_p99_ms:.1f} ms before, {p99_ms:.1f} during the restore, "
            f"{max(lookup.took_s for lookup in during) * 1_000:.1f} at most ({len(during)} lookups)\n"
        )
        replica = next(task for task in node.node().tasks if task.task == "0_0").stores[0]
        assert replica.restored_records == RECORDS
        assert max(memory.samples) < before + MAY_GROW_BYTES
        assert p99_ms < 25


def produce_many(fleet: Fleet) -> None:
    """Write records of 100 bytes to partition 0, keys in no order."""
    producer = Producer(
        {"bootstrap.servers": fleet.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    values = [random.randbytes(42).hex().encode() for _ in range(10_000)]
    nths = list(range(RECORDS))
    random.shuffle(nths)
    for nth in nths:
        if nth % 1_000 == 0:
            poll_until(lambda: producer.poll(0) >= 0 and len(producer) < 400_000, 60, "the broker to follow")
        producer.produce(fleet.changelog, key=b"%016d" % nth, value=values[nth % 10_000], partition=0)
    assert producer.flush(120) == 0


def percentile_99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) * 1024


class MemoryWatch:
    """Takes a process's resident memory ten times a second."""

    def __init__(self, pid: int) -> None:
        self.samples = [resident(pid)]
        self._pid, self._stop = pid, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.samples.append(resident(self._pid))
