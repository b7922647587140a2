"""SIGKILL of a node's Python, its program, or both, at any moment: the store is the log's, and nobody else answers."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK
from statehouse.v1 import query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until
from tests.support.proxy import proxy_of

KEYS = 400
LATEST_S = 1.5
"""A kill comes at most so long after the node has begun, or goes on with, what it has to read."""


class Writing:
    """Writes and deletes keys until it is stopped, some hundred at a time; `entries` is what the log then says."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self.entries: dict[str, str] = {}
        self._fleet, self._rng = fleet, rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._number = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stop.is_set():
            changes: dict[str, str | None] = {}
            for _ in range(self._rng.randint(1, 300)):
                self._number += 1
                key = f"k{self._rng.randrange(KEYS)}"
                changes[key] = None if self._rng.random() < 0.2 else str(self._number)
            self._fleet.put(changes)
            for key, value in changes.items():
                if value is None:
                    self.entries.pop(key, None)
                else:
                    self.entries[key] = value


def content(node: ServerProcess) -> dict[str, str]:
    page = node.call(node.query.Scan, query_service_pb2.ScanRequest(store=STORE, partition=0, page_size=1_000))
    return {entry.key.text: entry.value.text for entry in page.entries}


def is_answered(port: int) -> bool:
    """Whether anybody listens where the node did."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3_000)])])
def test_the_store_is_the_logs_whoever_is_killed(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, kills: int
) -> None:
    rng = random.Random(kills)
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        fleet.put({"first": "1"})
        node = fleet.node("n1", engine="go", checkpoint_interval_ms=300)
        fleet.assign(TaskAssignment("n1"))
        entries = {"first": "1"}
        for number in range(kills):
            with Writing(fleet, rng) as writing:
                writing.entries.update(entries)
                if rng.random() < 0.7:  # else it may be killed at any moment of its start or restore
                    fleet.wait_running([node])
                threading.Event().wait(rng.uniform(0, LATEST_S))
                whom = ("python", "program", "both")[number % 3]
                program = proxy_of(node.pid) if node.is_running else None
                if whom in {"program", "both"} and program is not None:
                    os.kill(program, signal.SIGKILL)
                if whom in {"python", "both"}:
                    node.kill()
                else:
                    poll_until(lambda: not node.is_running, 60, "the node to end without its program")
                poll_until(lambda: not is_answered(node.port), 20, f"nobody to answer after {whom} was killed")
            entries = writing.entries
            node.start()
            fleet.wait_running([node])
            poll_until(lambda entries=entries: content(node) == entries, 30, f"the log's content after kill {number}")
