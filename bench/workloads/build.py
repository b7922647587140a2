"""Building the store: the source topic is full, nothing has been processed yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final

from bench.data import key_of, value_of
from bench.measure import Result, Stage
from bench.sides.servers import Servers
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from statehouse.contract.partitioning import partition_for

_BUILD_S: Final = 1800.0
_RESOLUTION_S: Final = 0.05


def build(stage: Stage) -> Iterator[Result]:
    """Start for the first time; measure until the last record of each partition can be read.

    `records_per_s` counts from when processing begins; `until_all_s` includes the time that processes take to start.
    """
    servers, shape = stage.servers, stage.shape
    begin = time.monotonic()
    servers.spawn()

    def wait(predicate: Callable[[], bool], what: str) -> float:
        def holds() -> bool:
            servers.check()
            return predicate()

        wait_for(holds, _BUILD_S, f"{servers.side} {what}")
        return time.monotonic() - begin

    last = last_records(shape.keys, shape.partitions)
    first_s = wait(servers.is_processing, "to begin")
    for roles, of_roles in (("active", (True,)), ("active and standby", (True, False))):
        until_s = wait(partial(_is_visible, servers, last, of_roles), "to show the last records")
        yield Result(
            f"Building the store from {shape.keys} records, until visible at {roles}",
            {
                "records_per_s": shape.keys / max(until_s - first_s, _RESOLUTION_S),
                "records_per_cpu_s": shape.keys / cpu_seconds(servers.pids.values()),
                "until_all_s": until_s,
            },
        )
    servers.wait_settled()


def last_records(keys: int, partitions: int) -> dict[int, tuple[str, bytes]]:
    """Return the last key in each partition that has keys, with its value."""
    found: dict[int, tuple[str, bytes]] = {}
    for number in range(keys - 1, -1, -1):
        key = key_of(number)
        found.setdefault(partition_for(key.encode(), partitions), (key, value_of(number).encode()))
        if len(found) == partitions:
            break
    return found


def _is_visible(servers: Servers, last: dict[int, tuple[str, bytes]], roles: Collection[bool]) -> bool:
    """Whether all copies in these roles (True: active) are there, and each has its last record."""
    copies = [copy for copy in servers.copies() if copy.active in roles and copy.partition in last]
    held = {name: [last[copy.partition] for copy in copies if copy.node == name] for name in servers.node_names}
    return len(copies) >= len(last) * min(len(roles), servers.shape.nodes) and all(
        servers.read(name, [key for key, _ in records]) == [value for _, value in records]
        for name, records in held.items()
        if records
    )
