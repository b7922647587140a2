"""`statehouse verify` at full size: three wrong entries in a million, and ten minutes in which nothing is wrong."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bench.data import key_of, value_of
from statehouse.contract.topology import TaskId
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import node_service_pb2_grpc, verification_pb2
from tests.support.compared_store import ENTRIES, ComparedStore, named
from tests.support.fleet import Fleet
from tests.support.planted import Planted
from tests.support.tools import tool

pytestmark = pytest.mark.long

MILLION: Final = 1_000_000
ASKED_FOR: Final = MILLION - 1_000
"""The keys that lookups ask for: none of them is planted."""
PARTITIONS: Final = 4
ROUNDS: Final = 3
RATE: Final = 300
FOUND_WITHIN_S: Final = 60.0
SLOWER_MAX: Final = 1.2
MINUTES: Final = 10
EVENTS_EVERY_S: Final = 20.0


class Lookups:
    """Lookups through a router, whose times are measured."""

    def __init__(self, store: ComparedStore) -> None:
        self._command = [tool("loadgen"), "--targets", store.router.target, "--store", ENTRIES]
        self._command += ["--keys", str(ASKED_FOR), "--rate", str(RATE), "--timeout-ms", "5000", "--warmup-s", "1"]

    def p99_ms(self, duration_s: float) -> float:
        """Look up for a while."""
        ran = subprocess.run(
            [*self._command, "--duration-s", str(duration_s)], capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return p99_ms_in(ran.stdout)

    def begin(self, duration_s: float) -> subprocess.Popen[str]:
        """Look up meanwhile."""
        return subprocess.Popen([*self._command, "--duration-s", str(duration_s)], stdout=subprocess.PIPE, text=True)


def p99_ms_in(report: str) -> float:
    """Return what a report of loadgen says; no lookup may have failed."""
    latency = json.loads(report)["latency_us"]
    assert latency["failed"]["count"] == 0, report
    return float(latency["ok"]["p99"]) / 1_000


@pytest.mark.feature("replicas-compared")
@pytest.mark.timeout(1_200)
def test_three_wrong_entries_in_a_million_are_named_within_a_minute(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with Fleet(kafka.bootstrap, unique_name("million"), tmp_path, partitions=PARTITIONS) as fleet:
        store = ComparedStore(
            fleet,
            "go",
            MILLION,
            key=lambda number: key_of(number).encode(),
            value=lambda number: value_of(number).encode(),
        )
        store.load()
        wrong, missing = key_of(ASKED_FOR + 1), key_of(ASKED_FOR + 2)
        store.plant(
            "node-b",
            Planted(wrong.encode(), b"another", 1_000),
            Planted(missing.encode(), None),
            Planted(b"never-written", b"extra", 1_000),
        )
        lookups, took_s, alone_ms, meanwhile_ms = Lookups(store), [], [], []
        for _ in range(ROUNDS):
            alone_ms.append(lookups.p99_ms(15))
            loading = lookups.begin(10_000)
            began = time.monotonic()
            code, document, told = store.verify()
            took_s.append(time.monotonic() - began)
            loading.terminate()
            report, _ = loading.communicate(timeout=60)
            meanwhile_ms.append(p99_ms_in(report))
            assert code == 1, told
            assert named(document) == {
                ("node-b", wrong, "wrong value"),
                ("node-b", missing, "missing"),
                ("node-b", "never-written", "extra"),
            }
        slower = statistics.median(meanwhile_ms) / statistics.median(alone_ms)
        figures = f"found in {took_s} s; p99 alone {alone_ms} ms, meanwhile {meanwhile_ms} ms: {slower:.2f} x"
        sys.stdout.write(f"\n{figures}\n")
        assert max(took_s) <= FOUND_WITHIN_S, figures
        assert slower <= SLOWER_MAX, figures
        store.close()


@pytest.mark.feature("replicas-compared")
@pytest.mark.timeout(1_800)
def test_ten_minutes_of_writes_moves_and_restores_raise_no_alarm(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    config = {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    with Fleet(kafka.bootstrap, unique_name("calm"), tmp_path, partitions=PARTITIONS) as fleet:
        store = ComparedStore(fleet, "go", 100_000, changelog_config=config)
        store.load()
        outcomes: Counter[int] = Counter()
        events = itertools.cycle((_moves, _restores, _is_killed, _loses_its_disk))
        until = time.monotonic() + 60 * MINUTES
        due = time.monotonic() + EVENTS_EVERY_S
        with store.work.going_on():
            for number in itertools.count():
                if time.monotonic() >= until:
                    break
                if time.monotonic() >= due:
                    due = time.monotonic() + EVENTS_EVERY_S
                    next(events)(store, number)
                code, document, told = store.verify("--patience", "20", *(("--no-log",) if number % 3 == 0 else ()))
                outcomes[code] += 1
                assert code in {0, 4}, told
                assert not document["differences"], document
            fleet.wait_running(store.nodes.values(), 120)
            code, document, told = store.verify()
            assert (code, document["differences"]) == (0, []), told
        sys.stdout.write(f"\n{outcomes}\n")
        assert outcomes[0] >= 3 * outcomes[4], outcomes
        store.close()


def _moves(store: ComparedStore, number: int) -> None:
    """Have an active handed over."""
    fleet = store.fleet
    partition = number % PARTITIONS
    holder = fleet.assignment.tasks[TaskId(0, partition)]
    assert holder.active is not None
    fleet.reassign(partition, active=holder.standbys[0], standbys=(holder.active,))


def _restores(store: ComparedStore, number: int) -> None:
    """Have a replica restored while it is summed."""
    node = store.nodes["node-b" if number % 2 else "node-a"]
    stub = node_service_pb2_grpc.NodeServiceStub(node.channel)
    request = verification_pb2.RestoreReplicaRequest(store=ENTRIES, partition=number % PARTITIONS)
    node.call(stub.RestoreReplica, request)


def _is_killed(store: ComparedStore, number: int) -> None:
    """Kill a node, and start it again."""
    node = store.nodes["node-b" if number % 2 else "node-a"]
    node.kill()
    node.start()


def _loses_its_disk(store: ComparedStore, number: int) -> None:
    """Kill a node, and start it without what it had."""
    name = "node-b" if number % 2 else "node-a"
    store.nodes[name].kill()
    shutil.rmtree(store.fleet.directory / name)
    store.nodes[name].start()
