"""Kills of a driver and of its executors, again and again, each followed by the driver's return."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from processor.states.lifecycle import QueryState
from statehouse.contract.topology import changelog_topic
from statehouse.local.process import ProcessIdentity
from tests.integration.processor.support import ProcessorProcess, is_alive
from tests.support.chaos import CommitGap
from tests.support.polling import poll_until
from tests.support.spark_cluster import SparkCluster

log = structlog.get_logger(__name__)

SEED: Final = 7
PROGRESS_S: Final = 900.0
GAP_S: Final = 60.0
HELD_S: Final = 2.0

EXECUTOR, DRIVER, GAP = "an executor", "the driver", "the driver in the gap"
PYTHON, JAVA = "the driver's Python", "the driver's Java"
"""One of the driver's two processes; DRIVER is either."""


def plan(kills: Counter[str]) -> list[str]:
    """Return the kills in the order to make them."""
    in_order = list(kills.elements())
    random.Random(SEED).shuffle(in_order)
    return in_order


class Chaos:
    """Kills, sees to it that the driver comes back, and counts. It watches one query, which has one store.

    Without a cluster there are no executors to kill.
    """

    def __init__(
        self,
        driver: ProcessorProcess,
        bootstrap: str,
        application_id: str,
        query: str,
        partitions: int,
        cluster: SparkCluster | None = None,
    ) -> None:
        self._driver, self._cluster, self._bootstrap = driver, cluster, bootstrap
        self._application_id, self._query, self._partitions = application_id, query, partitions
        self._rng = random.Random(SEED)
        self._checkpoint = driver.checkpoint / application_id / query
        self.gaps_hit: list[int] = []
        self.batches_replayed: list[int] = []
        self.ended_by_itself = 0

    def start(self) -> None:
        """Start the driver for the first time."""
        self._driver.start()
        self._wait_for_batches(1)
        query_id = json.loads((self._checkpoint / "metadata").read_text())["id"]
        group = f"{self._application_id}-{query_id}-sink"
        changelog = changelog_topic(self._application_id, self._query)
        self._gap = CommitGap(self._bootstrap, group, changelog, self._partitions, self._checkpoint)

    def strike(self, kill: str, within_s: float, send_more: Callable[[], None]) -> None:
        """Kill at a random moment, or in the gap, and wait until batches are committed again.

        All events sent before may be committed by then: `send_more` sees to it that there is something to commit.
        """
        if kill != GAP:
            self._wait_for_a_moment(within_s)
        if kill == EXECUTOR:
            assert self._cluster is not None
            before = len(self._batches())
            self._rng.choice(poll_until(self._cluster.executors, PROGRESS_S, "an executor")).send(signal.SIGKILL)
            send_more()
            self._wait_for_batches(before + 1)
            return
        jvm = [identity for pid in self._driver.jvm_pids() if (identity := ProcessIdentity.of(pid))]
        batch_id = self._hold_in_the_gap() if kill == GAP else None
        java_first = kill != PYTHON and (kill in (JAVA, GAP) or self._rng.random() < 0.5)
        self._end(jvm, java_first=java_first)
        is_hit = batch_id is not None and not self._gap.is_committed(batch_id)
        send_more()
        self._driver.start()
        first = self._wait_for_batches(1)
        if is_hit:
            self.gaps_hit.append(batch_id)
        if first["skipped_partitions"]:
            self.batches_replayed.append(first["batch_id"])

    def _hold_in_the_gap(self) -> int | None:
        """Stop the driver's Python while Java writes a batch: Spark isn't told that it is written. Return the batch."""
        deadline = time.monotonic() + GAP_S
        while time.monotonic() < deadline:
            self._driver.send(signal.SIGSTOP)
            batch_id = self._gap.wait_open(HELD_S)
            if batch_id is not None:
                return batch_id
            self._driver.send(signal.SIGCONT)  # it had not begun to write one, and can't begin while it stands still
            self._wait_for_a_moment(HELD_S)
        return None

    def _wait_for_a_moment(self, within_s: float) -> None:
        at = time.monotonic() + self._rng.uniform(0, within_s)
        poll_until(lambda: time.monotonic() >= at, within_s + 1, "the moment")

    def _end(self, jvm: Sequence[ProcessIdentity], *, java_first: bool) -> None:
        """Kill one of the driver's two processes; the other must end on its own."""
        if java_first:
            for process in jvm:
                process.send(signal.SIGKILL)
            self._driver.send(signal.SIGCONT)  # it may stand still
            poll_until(lambda: not self._driver.is_running, 90, "a driver without Java to end")
        else:
            self._driver.kill()
            poll_until(lambda: not any(is_alive(process.pid) for process in jvm), 90, "Java without its driver to end")

    def see_to_the_driver(self) -> bool:
        """Start the driver again if it has ended by itself, or has given a query up; return whether it was."""
        given_up = [each for each in self._driver.events("query state changed") if each["new"] == QueryState.ERROR]
        if self._driver.is_running and not given_up:
            return False
        log.warning("the driver, or a query, ended by itself", queries=given_up, log_tail=self._driver.log_tail())
        self.ended_by_itself += 1
        if self._driver.is_running:
            self._driver.stop()
        self._driver.start()
        return True

    def _wait_for_batches(self, count: int) -> dict[str, object]:
        """Wait for the driver's so manieth batch; a driver that gave up is started again. Return its first batch."""

        def committed() -> list[dict[str, object]]:
            nonlocal count
            if self.see_to_the_driver():
                count = 1
            batches = self._batches()
            return batches if len(batches) >= count else []

        return poll_until(committed, PROGRESS_S, "a batch to be committed")[0]

    def _batches(self) -> list[dict[str, object]]:
        return [batch for batch in self._driver.events("batch committed") if batch["query"] == self._query]

    def written(self) -> int:
        """Return the newest batch that is in the changelog."""
        return self._gap.written()
