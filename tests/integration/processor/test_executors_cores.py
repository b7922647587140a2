"""How much faster a backlog is worked off by executors with more processor time, and whose time goes into it.

Driver and broker share a core; two executors share a quarter of one, a half, and one. Nothing about rates is asserted.
"""

from __future__ import annotations

import os
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import structlog

from bench.cores import CoresLimit
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.backlogs import fill
from tests.integration.processor.support import ProcessorProcess
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, process_on

log = structlog.get_logger(__name__)

WORKERS, BATCHES, WARM_UP = 2, 10, 5
GROUPS = "/sys/fs/cgroup/cpu"
# Python state does some tenth of what native aggregates do.
A_BATCH = {"tests.integration.processor.counters": 200_000, "examples.leaderboard.topology": 40_000}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cores", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("topology", A_BATCH)
def test_a_backlog_is_worked_off_by_executors_with_so_many_cores(tmp_path: Path, topology: str, cores: float):
    assert os.access(GROUPS, os.W_OK), f"{GROUPS} (control groups, version 1) can't be written: run it as root there"
    a_batch = A_BATCH[topology]
    with (
        closing(CoresLimit(f"driver-and-broker-{os.getpid()}", 1.0)) as rest,
        closing(CoresLimit(f"executors-{os.getpid()}", cores)) as executors,
        EmbeddedKafka() as broker,
        SparkCluster(tmp_path / "spark", WORKERS, prefixes=[executors.prefix] * WORKERS) as cluster,
    ):
        fill(broker, topology, a_batch * BATCHES)
        rest.hold([broker.pid])
        options = ["--max-offsets", str(a_batch), "--sink-tasks", str(WORKERS)]
        program = [*rest.prefix, *process_on(cluster.url)]
        driver = ProcessorProcess(topology, broker.bootstrap, tmp_path, *options, program=program, env=ENVIRONMENT)
        driver.start()
        try:
            driver.wait_for("batch committed", WARM_UP, 1200)
            began_s = [each.used_s for each in (rest, executors)]
            batches = driver.wait_for("batch committed", BATCHES, 1200)
            used_s = [each.used_s - before for each, before in zip((rest, executors), began_s, strict=True)]
        finally:
            driver.kill()
    ended = [datetime.fromisoformat(batch["timestamp"]) for batch in batches][WARM_UP - 1 : BATCHES]
    rate = a_batch / median((to - since).total_seconds() for since, to in pairwise(ended))
    of_rest, of_executors = (round(1000 * s / (BATCHES - WARM_UP)) for s in used_s)
    log.info("events a second", topology=topology, cores=cores, rate=round(rate))
    log.info("processor time of a batch, ms", driver_and_broker=of_rest, executors=of_executors)
