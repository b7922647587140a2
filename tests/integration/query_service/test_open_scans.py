"""Scans and exact counts of a store with many entries on real nodes: bounded, and gone with their callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until

ENTRIES = 60_000


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        fleet.put({f"key-{number:06}": "v" for number in range(ENTRIES)})
        yield fleet


def counting(process: ServerProcess, timeout: float = 60.0) -> Any:
    """Begin an exact count."""
    request = query_service_pb2.CountRequest(store=STORE, partition=0, exact=True)
    return process.query.Count.future(request, timeout=timeout)


def outcome(call: Any) -> str:
    """Return OK, or the reason of the failure."""
    try:
        return "OK" if call.result().count == ENTRIES else str(call.result().count)
    except grpc.RpcError as error:
        return from_rpc_error(error).reason.name


def test_scans_are_bounded_and_end_with_their_callers(fleet: Fleet) -> None:
    narrow = fleet.node("n1", max_open_scans=1, engine="python")
    hasty = fleet.node("n2", scan_timeout_ms=1, engine="python")
    fleet.assign(TaskAssignment("n1", ("n2",)))
    fleet.wait_running([narrow, hasty])

    outcomes = [outcome(call) for call in [counting(narrow) for _ in range(6)]]
    assert set(outcomes) == {"OK", "OVERLOADED"}
    assert outcome(counting(narrow)) == "OK", "there is room again"

    assert outcome(counting(hasty)) == "SCAN_TOO_LONG"
    request = query_service_pb2.ScanRequest(store=STORE, partition=0, page_size=1)

    def is_read() -> bool:
        try:
            return len(hasty.call(hasty.query.Scan, request).entries) == 1
        except LookupFailure as failure:
            assert failure.reason is Reason.SCAN_TOO_LONG  # noqa: PT017 - polled
            return False

    poll_until(is_read, 20, "what is short to be read within a millisecond")

    # Callers leave, one by its deadline and one of its own accord; the one place is free again.
    late, cancelled = counting(narrow, timeout=0.02), counting(narrow)
    cancelled.cancel()
    # At the deadline either end may be the first to give the call up; the server resets its stream.
    assert outcome(late) in {"ATTEMPT_TIMED_OUT", "OVERLOADED", "UNREACHABLE"}
    poll_until(lambda: outcome(counting(narrow)) == "OK", 20, "room for a count")

    # A task that is moved away doesn't wait for the counts of its store.
    calls = [counting(narrow) for _ in range(3)]
    fleet.assign(TaskAssignment("n2"))
    poll_until(lambda: not narrow.node().tasks, 20, "the task to close")
    assert {outcome(call) for call in calls} <= {"OK", "OVERLOADED", "PARTITION_NOT_OWNED", "PARTITION_RESTORING"}


def test_an_overloaded_node_sends_routed_scans_elsewhere(fleet: Fleet) -> None:
    nodes = [fleet.node("n1", max_open_scans=1, engine="python"), fleet.node("n2", engine="python")]
    router = fleet.router()
    fleet.assign(TaskAssignment("n1", ("n2",)))
    fleet.wait_running(nodes)

    def knows_both() -> bool:
        request = fleet_service_pb2.LocateKeyRequest(store=STORE, key=types_pb2.Key(text="key-000000"))
        try:
            candidates = router.call(router.fleet.LocateKey, request).candidates
        except LookupFailure as failure:
            assert failure.reason is Reason.ROUTING_NOT_READY  # noqa: PT017 - polled
            return False
        return [each.eligible for each in candidates] == [True, True]

    poll_until(knows_both, 20, "the router to have both nodes to ask")

    def hosts() -> set[str]:
        """Make four counts at the same time; return the nodes that did them. None may fail."""
        request = query_service_pb2.CountRequest(store=STORE, exact=True)
        answers = [call.result() for call in [router.query.Count.future(request, timeout=60) for _ in range(4)]]
        assert {answer.count for answer in answers} == {ENTRIES}
        return {stamp.host.instance_id for answer in answers for stamp in answer.replicas}

    # A slow machine may have all four done by the active, one after the other.
    poll_until(lambda: "n2" in hosts(), 60, "a count at the standby")
