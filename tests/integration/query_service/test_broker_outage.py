"""Without a broker a node serves on from local state, says how stale it is, and reconnects on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import types_pb2
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until


def is_kept(node: ServerProcess, key: str, **bound: int) -> bool:
    """Whether the node finds itself fit to answer within a bound."""
    try:
        return node.get(key, **bound).found
    except LookupFailure:
        return False


@pytest.mark.feature("broker-down-reads")
@pytest.mark.feature("node-out-touch")
def test_serves_on_with_growing_staleness_and_returns(unique_name: Callable[[str], str], tmp_path: Path) -> None:
    with (
        EmbeddedKafka(data_dir=tmp_path / "kafka") as kafka,
        Fleet(kafka.bootstrap, unique_name("app"), tmp_path, session_timeout_ms=2_000) as fleet,
    ):
        key = fleet.keys_in(0)[0]
        fleet.put({key: "1"})
        node = fleet.node("n1")
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        fleet.wait_running([node])
        poll_until(lambda: is_kept(node, key, active_only=True, max_lag=0), 20, "lag 0")
        assert not node.node().HasField("heartbeats_failing_ms")

        kafka.stop()
        stale = poll_until(
            lambda: (answer := node.get(key)).replica.staleness_ms > 2_500 and answer, 20, "staleness to grow"
        )
        assert stale.value.text == "1"
        assert stale.replica.role == types_pb2.REPLICA_ROLE_STANDBY, "an unconfirmed active does not claim to be one"
        with pytest.raises(LookupFailure) as failure:
            node.get(key, active_only=True)
        assert failure.value.reason is Reason.ACTIVE_UNCONFIRMED
        with pytest.raises(LookupFailure) as failure:
            node.get(key, max_staleness_ms=1_000)
        assert failure.value.reason is Reason.STALENESS_EXCEEDS_BOUND
        assert not stale.replica.HasField("lag"), "what was written meanwhile is unknown"
        with pytest.raises(LookupFailure, match="lag unknown exceeds") as failure:
            node.get(key, max_lag=1_000)
        assert failure.value.reason is Reason.LAG_EXCEEDS_BOUND
        poll_until(lambda: node.node().heartbeats_failing_ms > 2_000, 20, "heartbeats that are known to fail")

        kafka.start()
        fleet.put({key: "2"})
        poll_until(lambda: node.get(key).value.text == "2", 30, "the update after the outage")
        poll_until(lambda: node.get(key).replica.role == types_pb2.REPLICA_ROLE_ACTIVE, 20, "the role confirmed")
        poll_until(lambda: node.get(key).replica.staleness_ms < 2_500, 20, "staleness to be small again")
        poll_until(lambda: is_kept(node, key, max_lag=0), 20, "lag to be known again, and 0")
        poll_until(lambda: not node.node().HasField("heartbeats_failing_ms"), 20, "heartbeats to arrive again")
