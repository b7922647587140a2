"""Answers for callers that may not see the fleet have no addresses of nodes, in whatever part of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from statehouse.errors import LookupFailure, Reason
from statehouse.security.concealed import (
    ELSEWHERE,
    Addresses,
    concealed_answer,
    concealed_failure,
    concealed_message,
)
from statehouse.security.rights import RIGHTS, STORE_RIGHTS
from statehouse.v1 import errors_pb2, fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.addresses import HOST, SECRETS, TEXT, filled


def answers() -> list[tuple[str, Descriptor]]:
    return [
        (f"/{service.full_name}/{method.name}", method.output_type)
        for file in (query_service_pb2, fleet_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if RIGHTS[f"/{service.full_name}/{method.name}"] in STORE_RIGHTS
    ]


@pytest.mark.parametrize(("path", "kind"), answers(), ids=lambda given: given if isinstance(given, str) else "")
def test_no_answer_about_a_store_has_an_address(path: str, kind: Descriptor) -> None:
    given: Message = filled(kind)
    before = given.SerializeToString()
    told: list[Any] = [concealed_answer(path, before), concealed_answer(path, given)]
    for each in told:
        text = str(GetMessageClass(kind).FromString(each) if isinstance(each, bytes) else each)
        assert not any(secret in text for secret in SECRETS), text
        assert ("node-a" in text) == ("node-a" in str(given)), "the name stays"
    assert given.SerializeToString() == before, "it may be kept for others"


def test_nothing_else_of_an_answer_changes() -> None:
    """Also what only newer versions know; and values, in which there may be anything."""
    value = types_pb2.Value(json_text='"10.1.2.3:7101 connect"')
    response = query_service_pb2.GetResponse(found=True, value=value)
    response.replica.host.CopyFrom(HOST)
    response.replica.position = 7
    newer = response.SerializeToString() + b"\xfa\x7f\x03new"
    told = query_service_pb2.GetResponse.FromString(concealed_answer("/statehouse.v1.QueryService/Get", newer))
    response.replica.host.ClearField("host")
    response.replica.host.ClearField("port")
    assert told.SerializeToString() == response.SerializeToString() + b"\xfa\x7f\x03new"
    assert concealed_answer("/x/Y", b"as it is") == b"as it is"
    assert concealed_answer("/statehouse.v1.QueryService/Get", b"\xff") == b"\xff"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ipv4:10.1.2.3:7101: Connection refused", f"{ELSEWHERE} Connection refused"),
        (
            "failed to connect; last error: UNKNOWN: ipv6:%5B::1%5D:7101: x",
            "failed to connect; last error: UNKNOWN: {} x",
        ),
        ("dial tcp [fd00::7]:7101: connect: refused", "dial tcp {}: connect: refused"),
        ("dial tcp 10.1.2.3:7101: connect: refused", "dial tcp {}: connect: refused"),
        ("dial tcp: lookup b.nodes.internal on 10.0.0.2:53: no such host", "dial tcp: lookup {} on {}: no such host"),
        ("DNS resolution failed for b.nodes.internal:7101", "DNS resolution failed for {}"),
        ("a.nodes.internal is silent", "{} is silent"),
        (
            "node-a at 3 of 10, store counts, partition 0, epoch 4",
            "node-a at 3 of 10, store counts, partition 0, epoch 4",
        ),
        ("the position of topic scores:0:12 is not reached", "the position of topic scores:0:12 is not reached"),
        ("xa.nodes.internal, a.nodes.internals", "xa.nodes.internal, a.nodes.internals"),
    ],
)
def test_texts_say_no_address(said: str, told: str) -> None:
    addresses = Addresses([("node-a", "a.nodes.internal", 7_101)])
    assert addresses.taken_out_of(said) == told.replace("{}", ELSEWHERE)


def test_a_host_that_is_also_a_nodes_name_stays_without_its_port() -> None:
    addresses = Addresses([("node-a", "node-a", 7_101)])
    assert addresses.taken_out_of("node-a at node-a:7101 is silent") == f"node-a at {ELSEWHERE} is silent"


def test_a_failure_keeps_its_reason_and_its_candidates_names() -> None:
    candidate = errors_pb2.Candidate(host=HOST, detail=TEXT, eligible=False)
    route = errors_pb2.Route(active=HOST)
    failure = LookupFailure(
        Reason.NO_REPLICA_AVAILABLE, TEXT, {"first_reason": "UNREACHABLE"}, route=route, candidates=[candidate]
    )
    told = concealed_failure(failure)
    assert (told.reason, told.metadata) == (failure.reason, failure.metadata)
    assert [each.host.instance_id for each in told.candidates] == ["node-a"]
    assert not any(secret in str(told.to_proto()) for secret in SECRETS)
    assert any(secret in str(failure.to_proto()) for secret in SECRETS)


def test_what_repeats_the_request_is_told_as_it_is() -> None:
    failure = LookupFailure(Reason.INVALID_KEY, "the key '10.1.2.3:7101' can't be read; connect it")
    assert concealed_failure(failure) is failure


def test_a_message_is_copied() -> None:
    stamp = types_pb2.ReplicaStamp(host=HOST)
    assert concealed_message(stamp).host == types_pb2.Host(instance_id="node-a")
    assert stamp.host == HOST
