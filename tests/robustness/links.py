"""Connections that stall, are slow or break, while the processes at both ends are well."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, History
from tests.robustness.networks import Proxies
from tests.robustness.run import Run, Size
from tests.robustness.scenario import SMALL, Scenario
from tests.support.fault_proxy import BOTH, FaultProxy
from tests.support.fleet import ServerProcess
from tests.support.polling import poll_until

_DELAY_S: Final = 0.05
_RESETS: Final = 5
# A confirmation that was under way when the link was cut, and the rounding of ages.
_TOLERANCE_MS: Final = 5
_DEADLINE_S: Final = 60.0


def links(size: Size, directory: Path) -> History:
    """Between routers and a node: let everything stall, then delay each chunk by 50 ms, then reset all connections
    again and again. The same between a node and Kafka, where a stall is shorter than the session timeout first, and
    then longer."""
    with (
        Proxies([f"n{number + 1}" for number in range(size.shape.nodes)]) as proxies,
        Run("links", size, directory, proxies.start_node, proxies.doors) as run,
    ):
        epoch = run.cluster.assignment.epoch
        _disturb_routers(run, "n1", proxies.to_node["n1"])
        node, link = run.cluster.nodes["n2"], proxies.to_kafka["n2"]
        key = _key_of_active(run, node.name)
        _disturb_kafka(run, node, link, key)
        now = run.cluster.assignment
        assert now.epoch == epoch, f"epoch {now.epoch} was published though every node could be heard: {now.reason}"
        _cut_from_kafka(run, node, link, key)
    return run.history


def _disturb_routers(run: Run, name: str, link: FaultProxy) -> None:
    # Only the active may answer active-only reads, and it isn't reached.
    with run.fault("link stalls", name, may_fail=(ACTIVE_ONLY,)):
        link.stall(*BOTH)
        run.wait_traffic(run.size.outage_s)
        link.heal()
        router, key = next(iter(run.cluster.routers.values())), _key_of_active(run, name)
        poll_until(lambda: router.get(key).replica.host.instance_id == name, _DEADLINE_S, f"{name} to be asked again")
    with run.fault("link delays", name):
        link.delay(_DELAY_S, *BOTH)
        run.wait_traffic(run.size.outage_s)
        link.heal()
    with run.fault("link resets", name):
        _reset_often(run, link)


def _disturb_kafka(run: Run, node: ServerProcess, link: FaultProxy, key: str) -> None:
    with run.fault("Kafka link delays", node.name):
        link.delay(_DELAY_S, *BOTH)
        run.wait_traffic(run.size.outage_s)
        link.heal()
    with run.fault("Kafka link resets", node.name):
        _reset_often(run, link)
        run.wait_complete()
        run.wait_traffic(2 * run.size.shape.heartbeat_interval_ms / 1000)  # the node is heard of again
    with run.fault("Kafka link stalls", node.name):
        link.stall(*BOTH)
        since = time.monotonic()
        run.wait_traffic(run.size.shape.session_timeout_ms / 1000 / 3)
        assert _read_stale(node, key, since).replica.role == types_pb2.REPLICA_ROLE_ACTIVE
        link.heal()
        poll_until(
            lambda: node.get(key).replica.staleness_ms < 1000 * (time.monotonic() - since) - _TOLERANCE_MS,
            _DEADLINE_S,
            f"{node.name} to catch up",
        )


def _reset_often(run: Run, link: FaultProxy) -> None:
    for _ in range(_RESETS):
        link.reset()
        run.wait_traffic(run.size.outage_s / _RESETS)


def _cut_from_kafka(run: Run, node: ServerProcess, link: FaultProxy, key: str) -> None:
    """Cut a node off from Kafka for longer than its session: it answers as a standby, and says how stale it is."""
    with run.fault("cut off from Kafka", node.name, may_fail=(ACTIVE_ONLY,)):
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
            run.wait_traffic(run.size.outage_s)
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


def _refusal(node: ServerProcess, key: str, **bound: Any) -> Reason | None:
    try:
        node.get(key, **bound)
    except LookupFailure as failure:
        return failure.reason
    return None


def _key_of_active(run: Run, name: str) -> str:
    """Return a key of a partition that a node is active for."""
    actives = run.cluster.actives_of(name)
    return next(key for key in run.keys.existing if run.cluster.partition_of(key) in actives)


SCENARIOS: Final = (
    Scenario(
        "links",
        "Links to routers and to Kafka stall, are slow, break",
        links,
        Size(outage_s=10),
        # Only the cut waits for the session to end: it may be long enough for a busy machine.
        replace(SMALL, shape=replace(SMALL.shape, session_timeout_ms=6_000), outage_s=1.5),
        gap_s=1,
    ),
)
