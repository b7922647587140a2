"""Driver and executors of a standalone cluster are killed again and again while counters count and events pass.

Afterwards every replica on every node holds what plain Python computes. No value that was ever committed is anything
but the sum of a key's first events, none followed by an older one. Each event passed once, in order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import structlog

from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.integration.processor.counters import EVENTS, STORE
from tests.integration.processor.every_way import EACH, LATEST, application_id
from tests.integration.processor.kills import EXECUTOR, GAP, JAVA, PROGRESS_S, PYTHON, SEED, Chaos, plan
from tests.integration.processor.support import ProcessorProcess, check_counts, check_rows
from tests.support.chaos import NumberFeed
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import create_topic
from tests.support.polling import poll_until
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, process_on

log = structlog.get_logger(__name__)

PARTITIONS, KEYS = 4, 500
CHANGELOG = changelog_topic(application_id, STORE)
MORE = 100


@dataclass(frozen=True)
class Size:
    events: int
    per_s: int
    kills: Counter[str]


SMALL = Size(50_000, 1_500, Counter({EXECUTOR: 2, PYTHON: 1, JAVA: 1, GAP: 2}))
FULL = Size(500_000, 2_000, Counter({EXECUTOR: 12, PYTHON: 6, JAVA: 6, GAP: 6}))


class RegroupedProcess(ProcessorProcess):
    """Each start writes with another number of tasks, so that Spark groups a replayed batch's rows anew."""

    sink_tasks: cycle[int]

    def start(self) -> None:
        self.more_options = ["--sink-tasks", str(next(self.sink_tasks))]
        super().start()


@pytest.fixture
def broker():
    with EmbeddedKafka() as broker:
        yield broker


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("size", "sink_tasks"),
    [
        pytest.param(SMALL, [1, 4, 2], id="small"),
        pytest.param(FULL, [1], id="full, one task"),
        pytest.param(FULL, [4, 2, 3], id="full, several tasks"),
    ],
)
def test_no_kill_loses_or_doubles_or_takes_back(
    broker: EmbeddedKafka, tmp_path: Path, size: Size, sink_tasks: Sequence[int]
):
    create_topic(broker.bootstrap, EVENTS, PARTITIONS)
    slices = size.kills.total() + 1
    slice_s = size.events / slices / size.per_s
    with (
        SparkCluster(tmp_path / "spark") as cluster,
        Servers(broker.bootstrap, application_id, tmp_path) as servers,
        NumberFeed(broker.bootstrap, EVENTS, PARTITIONS, KEYS, size.per_s, SEED) as feed,
    ):
        driver = RegroupedProcess(
            "tests.integration.processor.every_way",
            broker.bootstrap,
            tmp_path,
            program=process_on(cluster.url),
            env=ENVIRONMENT,
        )
        driver.sink_tasks = cycle(sink_tasks)
        try:
            nodes = [servers.node("a"), servers.node("b")]
            feed.allow(size.events // slices)
            chaos = Chaos(driver, broker.bootstrap, application_id, STORE, PARTITIONS, cluster)
            chaos.start()
            began = time.monotonic()
            for nth, kill in enumerate(plan(size.kills), start=2):
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
    each, latest = (changelog_topic(application_id, store) for store in (EACH, LATEST))
    check_rows(broker.bootstrap, each, latest, feed.sums)
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
