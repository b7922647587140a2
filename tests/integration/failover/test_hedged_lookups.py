"""A real node that is stopped under lookups, in front of a router that would wait for it for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import types_pb2
from tests.support.fleet import STORE, Fleet
from tests.support.lookups import LookupLoad
from tests.support.metrics import scrape
from tests.support.polling import poll_until

RATE = 50


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


@pytest.mark.feature("node-killed-frozen")
def test_lookups_at_a_frozen_active_are_answered_by_the_standby_before_their_attempt_runs_out(fleet: Fleet) -> None:
    keys = fleet.keys_in(0, 20)
    fleet.put({key: f"v-{key}" for key in keys})
    fleet.assign(TaskAssignment("a", ("b",)))
    nodes = {name: fleet.node(name) for name in "ab"}
    metrics_port = free_port()
    router = fleet.router(attempt_timeout_ms=4_000, metrics_port=metrics_port)
    fleet.wait_running(nodes.values())

    def answered() -> bool:
        try:
            return router.get(keys[0]).replica.host.instance_id == "a"
        except LookupFailure:
            return False

    def won() -> float:
        return scrape(metrics_port).value("statehouse_router_hedges_total", outcome="won")

    poll_until(answered, 30, "the router to ask the active")
    with LookupLoad(f"127.0.0.1:{router.port}", STORE, keys, RATE, timeout_s=20.0) as load:
        poll_until(lambda: len(load.answers()) > RATE, 30, "lookups before the fault")
        won_before = won()
        nodes["a"].freeze()
        frozen_at = time.monotonic()
        poll_until(lambda: len(load.answers(frozen_at)) > RATE, 30, "lookups that are answered in spite of it")
        assert won() > won_before
        nodes["a"].thaw()
        thawed_at = time.monotonic()
        poll_until(
            lambda: any(
                lookup.response is not None and lookup.response.replica.role == types_pb2.REPLICA_ROLE_ACTIVE
                for lookup in load.answers(thawed_at)
            ),
            30,
            "the active to be asked again",
        )
    assert not load.failures
    assert all(lookup.response is not None and lookup.response.found for lookup in load.history)
