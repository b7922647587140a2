"""What this version writes, as the last release's contract reads it: both run at the same time in an upgrade."""

from __future__ import annotations

import tomllib
import zlib
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.membership import Member, ReplicaReport, StorePosition, TaskState, encode_member
from statehouse.contract.paging import next_page_token
from statehouse.contract.topology import Role, StoreSpec, SubTopology, TaskId
from statehouse.v1 import query_service_pb2, types_pb2

ROOT = Path(__file__).parents[3]
# As in the last release: what a scan's page token doesn't depend on.
_NOT_IN_TOKENS = ("page_size", "page_token", "freshness", "raw", "partition", "partitions", "forwarding")


@cache
def message_of_last_release(name: str) -> Any:
    """Return the class of a message as the last release's contract has it."""
    newest = tomllib.loads((ROOT / "RELEASES.toml").read_text())["release"][0]
    pool = descriptor_pool.DescriptorPool()
    found = descriptor_pb2.FileDescriptorSet.FromString((ROOT / newest["contract"]).read_bytes())
    for file in found.file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def unknown_fields(message: Message) -> list[int]:
    return [field.field_number for field in UnknownFieldSet(message)]


@pytest.mark.parametrize("kind", [query_service_pb2.ScanRequest, query_service_pb2.ScanWindowsRequest])
def test_a_node_of_the_last_release_takes_a_new_routers_page_token(kind: Any) -> None:
    """It makes its checksum of all that is in the request, also of what it doesn't know."""
    asked = kind(store="s", reverse=True, page_size=7)
    token = next_page_token(asked, b"last")
    sent = kind(store="s", reverse=True, page_size=7, page_token=token)
    forwarded = (
        sent.SerializeToString()
        + kind(forwarding=types_pb2.Forwarding(entry_keys=True, epoch=3, hops=1), partitions=[0, 2]).SerializeToString()
    )
    taken = message_of_last_release(kind.DESCRIPTOR.full_name).FromString(forwarded)
    for name in _NOT_IN_TOKENS:
        taken.ClearField(name)
    checksum = zlib.crc32(taken.SerializeToString(deterministic=True), zlib.crc32(taken.DESCRIPTOR.name.encode()))
    expected = zlib.crc32(
        kind(store="s", reverse=True).SerializeToString(deterministic=True), zlib.crc32(kind.DESCRIPTOR.name.encode())
    )
    assert checksum == expected


def test_the_last_release_knows_all_that_a_plain_assignment_says() -> None:
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    tasks = {TaskId(0, 0): TaskAssignment("a", ("b",))}
    following = Assignment(
        1,
        "r",
        "c",
        MappingProxyType(stores),
        MappingProxyType({0: SubTopology(0, "q", 1)}),
        MappingProxyType(tasks),
    )
    _, records = encode(Assignment(), following)
    for _, value in records:
        read = message_of_last_release("statehouse.control.v1.AssignmentRecord").FromString(value or b"")
        part = getattr(read, read.WhichOneof("record"))
        assert unknown_fields(read) == unknown_fields(part) == []


def test_the_last_release_knows_all_that_a_heartbeat_says() -> None:
    report = ReplicaReport(Role.ACTIVE, TaskState.RUNNING, MappingProxyType({"s": StorePosition(3, 5)}))
    member = Member("a", "1st", "host", 7, replicas=MappingProxyType({TaskId(0, 0): report}))
    read = message_of_last_release("statehouse.control.v1.Member").FromString(encode_member(member)[1])
    assert unknown_fields(read) == []
