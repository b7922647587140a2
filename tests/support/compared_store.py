"""A store whose copies are compared: a fleet of two nodes, what writes into it, and `statehouse verify`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from processor.reports.commits import StoreChangelog
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import Fleet
from tests.support.meanwhile import Meanwhile
from tests.support.planted import Planted, plant

ENTRIES: Final = "entries"
LOADED_AT_ONCE: Final = 10_000
BATCHES_S: Final = 0.05


class ComparedStore:
    """A store of two nodes, what writes batches into it, and the command that compares its copies.

    `key(number)`: the key of an entry's record. `value(number)`: what it has at first. `plain(key)`: the key in a
    record's key. `spec`: of the store, if it is no key-value one.
    """

    def __init__(
        self,
        fleet: Fleet,
        engine: str,
        count: int,
        *,
        key: Callable[[int], bytes] = lambda number: b"entry-%07d" % number,
        value: Callable[[int], bytes] = lambda number: b"value-%07d" % number,
        plain: Callable[[bytes], bytes] = lambda key: key,
        changelog_config: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.fleet, self.engine, self._count, self.key, self._value = fleet, engine, count, key, value
        self._plain = plain
        self._random, self._next = random.Random(count), 0
        fleet.add_store(ENTRIES, changelog_config, committed=True, **spec)
        changelogs = [StoreChangelog(ENTRIES, fleet.stores[ENTRIES].changelog_topic, fleet.partitions)]
        self._writer = BatchWriter(fleet.bootstrap, fleet.application_id, changelogs, "query-1")
        self.nodes = {name: fleet.node(name, engine=engine) for name in ("node-a", "node-b")}
        self.router = fleet.router()
        pair = ("node-a", "node-b")
        fleet.assign(*(TaskAssignment(pair[each % 2], (pair[1 - each % 2],)) for each in range(fleet.partitions)))
        self.work = Meanwhile(self._write_on, "writing")

    def load(self) -> None:
        for begin in range(0, self._count, LOADED_AT_ONCE):
            numbers = range(begin, min(self._count, begin + LOADED_AT_ONCE))
            self.write({self.key(each): self._value(each) for each in numbers})
        deleted = self.key(self._count)
        self.write({deleted: b"once"})
        self.write({deleted: None})
        self.fleet.wait_running(self.nodes.values())

    def write(self, entries: dict[bytes, bytes | None]) -> None:
        placed = [
            Placed(ENTRIES, partition_for(self._plain(key), self.fleet.partitions), key, value, 1_000)
            for key, value in entries.items()
        ]
        self._writer.write(self._next, placed)
        self._next += 1

    def _write_on(self, stop: threading.Event) -> None:
        while not stop.wait(BATCHES_S):
            numbers = self._random.sample(range(self._count), 50)
            self.write({self.key(each): None if each % 7 == 0 else self._random.randbytes(20) for each in numbers})

    def close(self) -> None:
        self._writer.close()

    def state_of(self, name: str, partition: int) -> Path:
        """Return the folder of a node's replica."""
        return self.fleet.directory / name / self.fleet.application_id / f"0_{partition}" / ENTRIES

    def plant(self, name: str, *entries: Planted) -> None:
        """Have a node's replicas differ."""
        self.nodes[name].stop()
        for partition in range(self.fleet.partitions):
            mine = [each for each in entries if partition_for(each.placed_by, self.fleet.partitions) == partition]
            if mine:
                plant(self.state_of(name, partition), self.engine, mine)
        self.nodes[name].start()
        self.fleet.wait_running(self.nodes.values())

    def verify(self, *options: str) -> tuple[int, Any, str]:
        """Return the command's exit code, its document and what it told on the way."""
        command = [
            sys.executable,
            "-m",
            "statehouse.cli",
            "verify",
            ENTRIES,
            "-o",
            "json",
            "--router",
            self.router.target,
        ]
        ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200, check=False)
        return ran.returncode, json.loads(ran.stdout) if ran.stdout else None, ran.stderr


def named(document: Any) -> set[tuple[str, str, str]]:
    """Return what a document of the command names: replica, key, and what is wrong."""
    return {(each["replica"], each["key"], each["wrong"]) for each in document["differences"]}
