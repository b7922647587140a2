"""Workloads of the sides: functions that take a stage and yield results."""

from __future__ import annotations

from typing import Final

from bench.measure import Workload
from bench.workloads.build import build
from bench.workloads.faults import failover, rolling_restart
from bench.workloads.freshness import freshness
from bench.workloads.kills import driver_kill, store_kill
from bench.workloads.lookups import batches, gets, gets_straight, hot_key, scans, warm_up
from bench.workloads.memory import memory
from bench.workloads.python import python_client
from bench.workloads.starts import restart, restore, start

WORKLOADS: Final[dict[str, Workload]] = {
    "start": start,
    "restart": restart,
    "restore": restore,
    "build": build,
    "warm-up": warm_up,
    "gets": gets,
    "gets-straight": gets_straight,
    "hot-key": hot_key,
    "batches": batches,
    "scans": scans,
    "python-client": python_client,
    "memory": memory,
    "freshness": freshness,
    "failover": failover,
    "rolling-restart": rolling_restart,
    "store-kill": store_kill,
    "driver-kill": driver_kill,
}
"""By the names in plans. The first workload of a round must start the servers."""
