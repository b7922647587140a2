"""What the router tells of a lookup, and of stores, nodes and partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import errors_pb2, fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.unit.router.fake_nodes import Fleet, wrong_owner
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
ANSWERED, FAILED = fleet_service_pb2.ATTEMPT_OUTCOME_ANSWERED, fleet_service_pb2.ATTEMPT_OUTCOME_FAILED
OVERTAKEN = fleet_service_pb2.ATTEMPT_OUTCOME_OVERTAKEN


def stub(fleet: Fleet) -> fleet_service_pb2_grpc.FleetServiceAsyncStub:
    return fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)


async def explain(fleet: Fleet, store: str = STORE, **fields: Any) -> fleet_service_pb2.ExplainGetResponse:
    lookup = query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text="k"), **fields)
    return await stub(fleet).ExplainGet(fleet_service_pb2.ExplainGetRequest(lookup=lookup))


def asked(told: fleet_service_pb2.ExplainGetResponse) -> list[tuple[str, int, bool, int]]:
    return [(each.host.instance_id, each.round, each.hedge, each.outcome) for each in told.attempts]


@pytest.mark.feature("locatekey-explainget-where")
async def test_an_answer_comes_with_who_gave_it_and_the_verdicts(start: Start) -> None:
    fleet = await start("a", "b")
    told = await explain(fleet)
    assert told.response.value.text == "a:k"
    assert asked(told) == [("a", 1, False, ANSWERED)]
    assert [candidate.host.instance_id for candidate in told.candidates] == ["a", "b"]
    assert all(candidate.eligible for candidate in told.candidates)
    assert told.route.active.instance_id == "a"
    (attempt,) = told.attempts
    assert 0 <= attempt.sent_after_ms <= attempt.sent_after_ms + attempt.took_ms <= told.took_ms


async def test_each_failure_on_the_way_is_told(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = LookupFailure(Reason.PARTITION_RESTORING, "at 3 of 10")
    told = await explain(fleet)
    assert told.response.value.text == "b:k"
    assert asked(told) == [("a", 1, False, FAILED), ("b", 1, False, ANSWERED)]
    assert told.attempts[0].reason == errors_pb2.ERROR_REASON_PARTITION_RESTORING
    assert told.attempts[0].detail == "at 3 of 10"


async def test_a_newer_owner_and_further_rounds_are_told(start: Start) -> None:
    fleet = await start("a")
    moved = await fleet.node("b")
    fleet.nodes["a"].failure = wrong_owner(2, moved)
    assert asked(await explain(fleet)) == [("a", 1, False, FAILED), ("b", 1, False, ANSWERED)]
    fleet.nodes["a"].failure = LookupFailure(Reason.PARTITION_RESTORING, "still")
    told = await explain(fleet)
    assert asked(told) == [("a", 1, False, FAILED), ("a", 2, False, FAILED)]
    assert told.error.reason == errors_pb2.ERROR_REASON_NO_REPLICA_AVAILABLE
    assert told.error.candidates[0].reason == errors_pb2.ERROR_REASON_PARTITION_RESTORING


async def test_a_hedge_and_what_it_overtook_are_told(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=5_000, hedge_min_ms=1)
    fleet.nodes["a"].freeze()
    told = await explain(fleet)
    assert asked(told) == [("a", 1, False, OVERTAKEN), ("b", 1, True, ANSWERED)]
    assert told.attempts[1].sent_after_ms >= told.hedge_after_ms


async def test_what_a_node_says_of_the_request_is_a_failed_lookup_not_a_failed_call(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = LookupFailure(Reason.VALUE_UNDECODABLE, "not JSON")
    told = await explain(fleet)
    assert told.error.reason == errors_pb2.ERROR_REASON_VALUE_UNDECODABLE
    assert asked(told) == [("a", 1, False, FAILED)]


async def test_a_request_that_cannot_be_routed_fails(start: Start) -> None:
    fleet = await start("a")
    with pytest.raises(grpc.RpcError) as caught:
        await explain(fleet, store="nowhere")
    assert from_rpc_error(caught.value).reason is Reason.UNKNOWN_STORE
    with pytest.raises(grpc.RpcError) as caught:
        await explain(fleet, forwarding=types_pb2.Forwarding(hops=1))
    assert from_rpc_error(caught.value).reason is Reason.HOP_LIMIT


@pytest.mark.feature("getfleet-liststores-listnodes")
async def test_stores_nodes_and_partitions_are_listed(start: Start) -> None:
    fleet = await start("b", "a")
    stores = await stub(fleet).ListStores(fleet_service_pb2.ListStoresRequest())
    assert [(store.name, store.partition_count) for store in stores.stores] == [(STORE, 1)]
    nodes = await stub(fleet).ListNodes(fleet_service_pb2.ListNodesRequest())
    assert [node.host.instance_id for node in nodes.nodes] == ["a", "b"]
    assert (stores.epoch, nodes.epoch) == (1, 1)
    listed = await stub(fleet).ListPartitions(fleet_service_pb2.ListPartitionsRequest(store=STORE))
    (partition,) = listed.partitions
    assert (partition.task, partition.route.partition, partition.route.active.instance_id) == ("0_0", 0, "b")
    assert [(replica.instance_id, replica.position, replica.lag) for replica in partition.replicas] == [
        ("b", 10, 0),
        ("a", 10, 0),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        await stub(fleet).ListPartitions(fleet_service_pb2.ListPartitionsRequest())
    assert from_rpc_error(caught.value).reason is Reason.UNKNOWN_STORE


async def test_bytes_that_are_no_message_are_a_wrong_request(start: Start) -> None:
    fleet = await start("a")
    for method in ("FleetService/LocateKey", "FleetService/WatchFleet", "QueryService/Scan", "QueryService/Get"):
        path = f"/statehouse.v1.{method}"
        make = fleet.channel.unary_stream if "Watch" in method else fleet.channel.unary_unary
        call: Any = make(path)(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
