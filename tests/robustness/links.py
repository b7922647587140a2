"""Connections that stall, are slow, or break, while the processes at their ends are well."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, History
from tests.robustness.networks import Proxies
from tests.robustness.run import Run, Size
from tests.robustness.scenario import Scenario
from tests.support.fault_proxy import BOTH, FaultProxy
from tests.support.fleet import ServerProcess
from tests.support.polling import poll_until

_DELAY_S: Final = 0.05
_RESETS: Final = 5
# A confirmation that was under way when the link was cut, and the rounding of ages.
_TOLERANCE_MS: Final = 5
_DEADLINE_S: Final = 60.0


def router_links(size: Size, directory: Path) -> History:
    """Between routers and one node: let everything stall, then delay each chunk by 50 ms, then reset all connections
    again and again."""
    with (
        Proxies([f"n{number + 1}" for number in range(size.shape.nodes)]) as proxies,
        Run("router-links", size, directory, proxies.start_node, proxies.doors) as run,
    ):
        epoch = run.cluster.assignment.epoch
        link = proxies.to_node["n1"]
        # Only the active may answer active-only reads, and it isn't reached.
        with run.fault("link stalls", "n1", may_fail=(ACTIVE_ONLY,)):
            link.stall(*BOTH)
            run.wait_traffic(size.outage_s)
            link.heal()
            _wait_asked(run, "n1", link)
        with run.fault("link delays", "n1"):
            link.delay(_DELAY_S, *BOTH)
            run.wait_traffic(size.outage_s)
            link.heal()
        with run.fault("link resets", "n1"):
            for _ in range(_RESETS):
                link.reset()
                run.wait_traffic(size.outage_s / _RESETS)
        _assert_nothing_moved(run, epoch)
    return run.history


def kafka_links(size: Size, directory: Path) -> History:
    """Between one node and Kafka: delay each chunk by 50 ms, reset all connections again and again, let everything
    stall for less than the session timeout, and then for longer."""
    with (
        Proxies([f"n{number + 1}" for number in range(size.shape.nodes)]) as proxies,
        Run("kafka-links", size, directory, proxies.start_node, proxies.doors) as run,
    ):
        epoch = run.cluster.assignment.epoch
        session_s = size.shape.session_timeout_ms / 1000
        node, link = run.cluster.nodes["n1"], proxies.to_kafka["n1"]
        key = next(key for key in run.keys.existing if run.cluster.partition_of(key) in run.cluster.actives_of("n1"))
        with run.fault("Kafka link delays", "n1"):
            link.delay(_DELAY_S, *BOTH)
            run.wait_traffic(session_s)
            link.heal()
        with run.fault("Kafka link resets", "n1"):
            for _ in range(_RESETS):
                link.reset()
                run.wait_traffic(session_s / _RESETS)
        with run.fault("Kafka link stalls", "n1"):
            link.stall(*BOTH)
            since = time.monotonic()
            run.wait_traffic(session_s / 2)
            answer = _read_stale(node, key, since)
            assert answer.replica.role == types_pb2.REPLICA_ROLE_ACTIVE
            link.heal()
            _wait_fresh(node, key, since)
        _assert_nothing_moved(run, epoch)
        _cut_from_kafka(run, node, link, key)
    return run.history


def _cut_from_kafka(run: Run, node: ServerProcess, link: FaultProxy, key: str) -> None:
    """Cut a node off from Kafka for longer than its session: it answers as a standby, and says how stale it is."""
    with run.fault("cut off from Kafka", node.name, may_fail=(ACTIVE_ONLY,)):
        until = run.recorder.now + run.size.outage_s
        link.stall(*BOTH)
        since = time.monotonic()
        try:
            poll_until(
                lambda: _read_stale(node, key, since).replica.role == types_pb2.REPLICA_ROLE_STANDBY,
                _DEADLINE_S,
                "the cut off node to call itself a standby",
            )
            assert _refusal(node, key, active_only=True) is Reason.ACTIVE_UNCONFIRMED
            run.cluster.wait_moved_from(node.name)
            run.wait_traffic(max(0.0, until - run.recorder.now))
            assert _read_stale(node, key, since).replica.staleness_ms > run.size.shape.session_timeout_ms
            assert _refusal(node, key, max_staleness_ms=1_000) is Reason.STALENESS_EXCEEDS_BOUND
        finally:
            link.heal()
        run.cluster.wait_settled()
        run.wait_complete()


def _read_stale(node: ServerProcess, key: str, since: float) -> query_service_pb2.GetResponse:
    """Read from a node that has heard nothing of Kafka since a moment (monotonic); it must admit to that."""
    asked_at = time.monotonic()
    answer = node.get(key)
    least_ms = 1000 * (asked_at - since) - _TOLERANCE_MS
    assert answer.replica.staleness_ms >= least_ms, f"stale by {answer.replica.staleness_ms} ms, at least {least_ms}"
    return answer


def _wait_fresh(node: ServerProcess, key: str, since: float) -> None:
    """Wait until a node has confirmed that it is at the end after a moment (monotonic)."""
    poll_until(
        lambda: node.get(key).replica.staleness_ms < 1000 * (time.monotonic() - since) - _TOLERANCE_MS,
        _DEADLINE_S,
        f"{node.name} to catch up",
    )


def _refusal(node: ServerProcess, key: str, **bound: object) -> Reason | None:
    try:
        node.get(key, **bound)
    except LookupFailure as failure:
        return failure.reason
    return None


def _wait_asked(run: Run, name: str, link: FaultProxy) -> None:
    """Wait until routers get answers from a node again."""
    router = next(iter(run.cluster.routers.values()))
    key = next(key for key in run.keys.existing if run.cluster.partition_of(key) in run.cluster.actives_of(name))
    poll_until(lambda: router.get(key).replica.host.instance_id == name, _DEADLINE_S, f"{name} to be asked again")


def _assert_nothing_moved(run: Run, epoch: int) -> None:
    now = run.cluster.assignment
    assert now.epoch == epoch, f"epoch {now.epoch} was published though every node could be heard: {now.reason}"


SCENARIOS: Final = (
    Scenario(
        "router-links",
        "A router's link to a node stalls, is slow, breaks",
        router_links,
        Size(outage_s=10),
        gap_s=1,
    ),
    Scenario(
        "kafka-links",
        "A node's link to Kafka is slow, breaks, stalls, is cut",
        kafka_links,
        Size(outage_s=20),
        gap_s=1,
    ),
)
