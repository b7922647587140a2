"""Building the store: the source topic is full, nothing has been processed yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from bench.data import key_of, value_of
from bench.measure import Result, Stage
from bench.sides.servers import Servers
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from statehouse.partitioning import partition_for

_BUILD_S: Final = 1800.0
_RESOLUTION_S: Final = 0.05


def build(stage: Stage) -> Iterator[Result]:
    """Start for the first time; measure until the last record of each partition can be read at both of its copies.

    `records_per_s` counts from when records are processed; how long processes take to start is in `until_all_s`.
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
    wait(servers.is_built, "to have its changelog complete")
    until_s = wait(lambda: _is_visible(servers, last), "to show the last records")
    cpu_s = cpu_seconds(servers.pids.values())
    servers.wait_settled()
    yield Result(
        f"Building the store from {shape.keys} records, until visible at active and standby",
        {
            "records_per_s": shape.keys / max(until_s - first_s, _RESOLUTION_S),
            "records_per_cpu_s": shape.keys / cpu_s,
            "until_all_s": until_s,
        },
    )


def last_records(keys: int, partitions: int) -> dict[int, tuple[str, bytes]]:
    """Return the last key of the data in each partition that has one, and its value."""
    found: dict[int, tuple[str, bytes]] = {}
    for number in range(keys - 1, -1, -1):
        key = key_of(number)
        found.setdefault(partition_for(key.encode(), partitions), (key, value_of(number).encode()))
        if len(found) == partitions:
            break
    return found


def _is_visible(servers: Servers, last: dict[int, tuple[str, bytes]]) -> bool:
    copies = servers.copies()
    copies_needed = len(last) * min(2, servers.shape.nodes)
    held = {name: [last[copy.partition] for copy in copies if copy.node == name] for name in servers.node_names}
    return sum(map(len, held.values())) >= copies_needed and all(
        servers.read(name, [key for key, _ in records]) == [value for _, value in records]
        for name, records in held.items()
        if records
    )
