"""How much faster a backlog is worked off by two workers than by one, and whose processor time goes into it.

Nothing about rates is asserted: on a machine with as many cores as workers the broker and the driver take their share.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import structlog

from bench.cores import CoresLimit
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import descendants, stat
from tests.integration.processor.backlogs import fill
from tests.integration.processor.support import ProcessorProcess
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, process_on

log = structlog.get_logger(__name__)

BATCHES, WARM_UP = 8, 3
# Python state does some tenth of what native aggregates do.
COUNTED_A_BATCH, SCORES_A_BATCH = 50_000, 10_000
# What a batch costs whatever is in it is the driver's, and half a core doesn't show it.
TIMES_WITH_HALF_A_CORE = 5


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("cores", [None, 0.5], ids=["a-core-each", "half-a-core-each"])
@pytest.mark.parametrize("topology", ["tests.integration.processor.counters", "examples.leaderboard.topology"])
def test_a_backlog_is_worked_off_by_one_and_by_two_workers(tmp_path: Path, topology: str, cores: float | None):
    rates, cpu = {}, {}
    a_batch = COUNTED_A_BATCH if topology.endswith("counters") else SCORES_A_BATCH
    if cores is not None:
        a_batch *= TIMES_WITH_HALF_A_CORE
    for workers in (1, 2):
        directory = tmp_path / str(workers)
        with ExitStack() as stack:
            limits = [] if cores is None else [limit(stack, f"worker-{nth}", cores) for nth in range(workers)]
            broker = stack.enter_context(EmbeddedKafka())
            prefixes = [each.prefix for each in limits]
            cluster = stack.enter_context(SparkCluster(directory / "spark", workers, prefixes=prefixes))
            fill(broker, topology, a_batch * BATCHES)
            options = ["--max-offsets", str(a_batch), "--sink-tasks", str(1 if cores is None else workers)]
            program = process_on(cluster.url)
            driver = ProcessorProcess(topology, broker.bootstrap, directory, *options, program=program, env=ENVIRONMENT)
            driver.start()
            try:
                driver.wait_for("batch committed", WARM_UP, 900)
                began = processor_s(broker, driver, cluster)
                batches = driver.wait_for("batch committed", BATCHES, 900)
                cpu[workers] = {
                    who: round(s - began[who], 1) for who, s in processor_s(broker, driver, cluster).items()
                }
            finally:
                driver.kill()
        ended = [datetime.fromisoformat(batch["timestamp"]) for batch in batches][WARM_UP - 1 : BATCHES]
        rates[workers] = round(a_batch / median((to - since).total_seconds() for since, to in pairwise(ended)))
    log.info("events a second", topology=topology, cores=cores, one_worker=rates[1], two_workers=rates[2])
    log.info("processor seconds", batches=BATCHES - WARM_UP, one_worker=cpu[1], two_workers=cpu[2])


def limit(stack: ExitStack, name: str, cores: float) -> CoresLimit:
    """Let a worker and its executor use so many cores; until the stack ends."""
    limited = CoresLimit(f"{name}-{os.getpid()}", cores)
    stack.callback(limited.close)
    return limited


def processor_s(broker: EmbeddedKafka, driver: ProcessorProcess, cluster: SparkCluster) -> dict[str, float]:
    """Return the processor seconds that each party has used, those of ended workers of Python left out."""
    workers = [worker.pid for worker in cluster.workers if worker.pid]
    tops = {"broker": [broker.pid], "driver": [driver.pid], "executors": workers}
    return {
        who: sum(used_s(pid) + sum(used_s(child.pid) for child in descendants(pid)) for pid in pids)
        for who, pids in tops.items()
    }


def used_s(pid: int) -> float:
    """Return a process's user and system time in seconds; 0 if it has ended."""
    fields = stat(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
