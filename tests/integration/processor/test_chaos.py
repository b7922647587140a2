"""Driver and executors of a standalone cluster are killed again and again while counters count.

Afterwards every replica on every node holds what plain Python computes, and no value that was ever committed is
anything but the sum of a key's first events, none followed by an older one.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import structlog

from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ProcessIdentity
from statehouse.v1 import query_service_pb2
from tests.integration.processor.counters import EVENTS, STORE, application_id
from tests.integration.processor.support import ProcessorProcess, check_counts, is_alive
from tests.support.chaos import CommitGap, NumberFeed
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import create_topic
from tests.support.polling import poll_until
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, process_on

log = structlog.get_logger(__name__)

PARTITIONS, KEYS, SEED = 4, 500, 7
CHANGELOG = changelog_topic(application_id, STORE)
PROGRESS_S, GAP_S = 900.0, 60.0
MORE = 100

EXECUTOR, DRIVER, GAP = "an executor", "the driver", "the driver in the gap"


@dataclass(frozen=True)
class Size:
    events: int
    per_s: int
    kills: Counter[str]

    def plan(self) -> list[str]:
        """Return the kills in the order to make them."""
        kills = list(self.kills.elements())
        random.Random(SEED).shuffle(kills)
        return kills


SMALL = Size(50_000, 1_500, Counter({EXECUTOR: 3, DRIVER: 1, GAP: 2}))
FULL = Size(500_000, 2_000, Counter({EXECUTOR: 18, DRIVER: 6, GAP: 6}))


class Chaos:
    """Kills, sees to it that the driver comes back, and counts."""

    def __init__(self, driver: ProcessorProcess, cluster: SparkCluster, bootstrap: str) -> None:
        self._driver, self._cluster, self._bootstrap = driver, cluster, bootstrap
        self._rng = random.Random(SEED)
        self._checkpoint = driver.checkpoint / application_id / STORE
        self.gaps_hit: list[int] = []
        self.batches_replayed: list[int] = []
        self.ended_by_itself = 0

    def start(self) -> None:
        """Start the driver for the first time."""
        self._driver.start()
        self._wait_for_batches(1)
        query_id = json.loads((self._checkpoint / "metadata").read_text())["id"]
        group = f"{application_id}-{query_id}-sink"
        self._gap = CommitGap(self._bootstrap, group, CHANGELOG, PARTITIONS, self._checkpoint)

    def strike(self, kill: str, within_s: float, send_more: Callable[[], None]) -> None:
        """Kill at a random moment, or in the gap, and wait until batches are committed again.

        All events sent before may be committed by then: `send_more` sees to it that there is something to commit.
        """
        at = time.monotonic() + self._rng.uniform(0, within_s)
        if kill != GAP:
            poll_until(lambda: time.monotonic() >= at, within_s + 1, "the moment")
        if kill == EXECUTOR:
            before = len(self._driver.events("batch committed"))
            self._rng.choice(poll_until(self._cluster.executors, PROGRESS_S, "an executor")).send(signal.SIGKILL)
            send_more()
            self._wait_for_batches(before + 1)
            return
        jvm = [identity for pid in self._driver.jvm_pids() if (identity := ProcessIdentity.of(pid))]
        batch_id = self._gap.wait_open(GAP_S) if kill == GAP else None
        self._end(jvm, java_first=batch_id is not None or self._rng.random() < 0.5)
        is_hit = batch_id is not None and not self._gap.is_committed(batch_id)
        send_more()
        self._driver.start()
        first = self._wait_for_batches(1)
        if is_hit:
            self.gaps_hit.append(batch_id)
        if first["skipped_partitions"]:
            self.batches_replayed.append(first["batch_id"])

    def _end(self, jvm: Sequence[ProcessIdentity], *, java_first: bool) -> None:
        """Kill one of the driver's two processes; the other must end on its own."""
        if java_first:
            for process in jvm:
                process.send(signal.SIGKILL)
            poll_until(lambda: not self._driver.is_running, 90, "a driver without Java to end")
        else:
            self._driver.kill()
            poll_until(lambda: not any(is_alive(process.pid) for process in jvm), 90, "Java without its driver to end")

    def _wait_for_batches(self, count: int) -> dict[str, object]:
        """Wait for the driver's so manieth batch; a driver that gave up is started again. Return its first batch."""

        def committed() -> list[dict[str, object]]:
            nonlocal count
            if not self._driver.is_running:
                log.warning("the driver ended by itself", log_tail=self._driver.log_tail())
                self.ended_by_itself += 1
                count = 1
                self._driver.start()
            batches = self._driver.events("batch committed")
            return batches if len(batches) >= count else []

        return poll_until(committed, PROGRESS_S, "a batch to be committed")[0]


@pytest.fixture
def broker():
    with EmbeddedKafka() as broker:
        yield broker


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [pytest.param(SMALL, id="small"), pytest.param(FULL, id="full")])
def test_no_kill_loses_or_doubles_or_takes_back(broker: EmbeddedKafka, tmp_path: Path, size: Size):
    create_topic(broker.bootstrap, EVENTS, PARTITIONS)
    slices = size.kills.total() + 1
    slice_s = size.events / slices / size.per_s
    with (
        SparkCluster(tmp_path / "spark") as cluster,
        Servers(broker.bootstrap, application_id, tmp_path) as servers,
        NumberFeed(broker.bootstrap, EVENTS, PARTITIONS, KEYS, size.per_s, SEED) as feed,
    ):
        driver = ProcessorProcess(
            "tests.integration.processor.counters",
            broker.bootstrap,
            tmp_path,
            program=process_on(cluster.url),
            env=ENVIRONMENT,
        )
        try:
            nodes = [servers.node("a"), servers.node("b")]
            feed.allow(size.events // slices)
            chaos = Chaos(driver, cluster, broker.bootstrap)
            chaos.start()
            began = time.monotonic()
            for nth, kill in enumerate(size.plan(), start=2):
                allowed = size.events * nth // slices
                feed.allow(allowed)
                chaos.strike(kill, slice_s, send_more=partial(feed.allow, allowed + MORE))
                log.info("killed", what=kill, after_s=round(time.monotonic() - began))
            feed.finish(600)
            expected = {key: json_of(len(sums) - 1, sums[-1]) for key, sums in feed.sums.items()}
            for node in nodes:
                poll_until(lambda node=node: contents(node) == by_partition(expected), PROGRESS_S, f"node {node.name}")
            log.info("survived", hit=chaos.gaps_hit, replayed=chaos.batches_replayed, ended=chaos.ended_by_itself)
        finally:
            if driver.is_running:
                driver.stop()
    check_counts(broker.bootstrap, CHANGELOG, feed.sums)
    assert len(chaos.gaps_hit) >= size.kills[GAP] // 2, "too few kills have hit the gap"
    assert set(chaos.gaps_hit) <= set(chaos.batches_replayed), "a batch in the gap was written again"


def json_of(count: int, total: int) -> str:
    return f'{{"count":{count},"sum":{total}}}'


def by_partition(values: dict[str, str]) -> list[dict[bytes, bytes]]:
    """Return what each partition must hold."""
    return [
        {k.encode(): v.encode() for k, v in values.items() if partition_for(k.encode(), PARTITIONS) == partition}
        for partition in range(PARTITIONS)
    ]


def contents(node: ServerProcess) -> list[dict[bytes, bytes]]:
    """Return what a node holds of each partition; nothing of one that it doesn't serve yet."""
    running = {task.task for task in node.node().tasks if task.state == "running"}
    return [scanned(node, partition) if f"0_{partition}" in running else {} for partition in range(PARTITIONS)]


def scanned(node: ServerProcess, partition: int) -> dict[bytes, bytes]:
    request = query_service_pb2.ScanRequest(store=STORE, partition=partition, raw=True, page_size=1000)
    page = node.call(node.query.Scan, request)
    assert not page.next_page_token
    return {entry.key.raw: entry.value.raw for entry in page.entries}
