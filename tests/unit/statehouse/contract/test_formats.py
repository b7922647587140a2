"""Formats: what a newer version wrote is refused with a reason, and what an older one wrote is read."""

from __future__ import annotations

import base64
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.topics.controller_record import decode_controller, encode_controller
from statehouse.contract import assignment, formats, membership, paging, processor_reports
from statehouse.contract.assignment import Assignment, AssignmentReader, encode
from statehouse.contract.formats import NewerFormatError, RecordFormat
from statehouse.contract.membership import Member, decode_member, encode_member
from statehouse.contract.processor_reports import decode_commit
from statehouse.contract.scan_ranges import key_range
from statehouse.contract.topology import StoreSpec
from statehouse.control.v1 import assignment_pb2, commits_pb2, members_pb2, page_token_pb2
from statehouse.errors import ContractError, LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2
from tests.support.settings import ownership

NEWER = 7
MEMBER = Member("a", "1st", "host", 7)
CONTROLLER = ControllerRecord("c1", "host", is_standby=False, heartbeat=1, settings=ownership())
STORES = MappingProxyType({"s": StoreSpec("s", "app-s-changelog", 1, 0)})


@pytest.fixture
def newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that writes and reads one format more of everything."""
    for module, name in ((assignment, "ASSIGNMENT"), (membership, "MEMBER"), (processor_reports, "COMMIT")):
        monkeypatch.setattr(module, name, replace(getattr(module, name), written=1, read=1))
    monkeypatch.setattr("processor.ownership.topics.controller_record.ASSIGNMENT", assignment.ASSIGNMENT)
    monkeypatch.setattr(paging, "PAGE_TOKEN", replace(paging.PAGE_TOKEN, written=1, read=1))


def epochs(*numbers: int) -> list[tuple[bytes, bytes | None]]:
    """Return the records of these epochs, in order."""
    log: list[tuple[bytes, bytes | None]] = []
    before = Assignment()
    for number in numbers:
        before, records = encode(before, Assignment(number, "r", "c", STORES))
        log += records
    return log


def of_format(record: bytes | None, number: int) -> bytes:
    read = assignment_pb2.AssignmentRecord.FromString(record or b"")
    read.format_version = number
    return read.SerializeToString()


def test_a_format_reads_itself_and_those_before_it() -> None:
    kept = RecordFormat("note", written=1, read=2)
    for found in (0, 1, 2):
        kept.check(found)
    with pytest.raises(NewerFormatError, match=r"a newer version wrote this note, in format 3; .* up to 2: update"):
        kept.check(3)


def test_no_release_writes_what_it_does_not_read() -> None:
    declared = [each for each in vars(formats).values() if isinstance(each, RecordFormat)]
    assert len(declared) == 5
    assert all(0 <= each.written <= each.read <= each.written + 1 for each in declared)


def test_records_of_the_first_format_are_the_same_bytes_as_before_there_were_formats() -> None:
    for record in (
        *(assignment_pb2.AssignmentRecord.FromString(value or b"") for _, value in epochs(1)),
        members_pb2.Member.FromString(encode_member(MEMBER)[1]),
    ):
        assert "format_version" not in {field.name for field, _ in record.ListFields()}


@pytest.mark.feature("records-control-topics-page")
def test_a_heartbeat_of_a_newer_format_is_refused_and_an_unknown_field_is_not() -> None:
    key, value = encode_member(MEMBER)
    assert decode_member(key, value + b"\xfa\x3f\x01!", 0, 0) == MEMBER  # field 1023
    newer = value + members_pb2.Member(format_version=NEWER).SerializeToString()
    with pytest.raises(NewerFormatError, match=r"heartbeat, in format 7"):
        decode_member(key, newer, 0, 0)


def test_a_commit_of_a_newer_format_is_refused() -> None:
    commit = commits_pb2.Commit(store="boards", format_version=NEWER)
    with pytest.raises(NewerFormatError, match="commit record, in format 7"):
        decode_commit(b"boards", commit.SerializeToString())


@pytest.mark.feature("records-control-topics-page")
def test_an_epoch_of_a_newer_format_is_skipped_and_the_one_before_stays() -> None:
    problems: list[tuple[str, str]] = []
    reader = AssignmentReader(lambda key, error: problems.append((key, str(error))))
    for key, value in epochs(1):
        reader.feed(key, value)
    assert reader.of_newer_format() == reader.not_understood() == ""
    for key, value in epochs(1, 2)[-1:]:
        reader.feed(key, of_format(value, NEWER))
    assert reader.current is not None
    assert reader.current.epoch == 1, "the epoch before goes on"
    assert [key for key, _ in problems] == ["epoch"]
    assert "in format 7" in problems[0][1]
    # Nobody plans on from it.
    assert reader.of_newer_format() == reader.not_understood() == "epoch"
    for key, value in epochs(1, 2, 3)[-1:]:
        reader.feed(key, value)
    assert reader.current.epoch == 3
    assert reader.of_newer_format() == ""


@pytest.mark.usefixtures("newer_version")
def test_a_newer_version_plans_on_from_an_older_ones_assignment() -> None:
    reader = AssignmentReader()
    for key, value in epochs(1):
        reader.feed(key, of_format(value, 0))
    assert reader.current is not None
    assert reader.not_understood() == "", "an older format is as good"
    assert reader.unlike(reader.current) == ""
    record = assignment_pb2.AssignmentRecord.FromString(encode_controller(CONTROLLER)[1])
    assert record.format_version == 1
    record.format_version = 0
    assert decode_controller(record.SerializeToString()) == CONTROLLER
    assert decode_member(*encode_member(MEMBER), 0, 0) == MEMBER


def test_a_controllers_record_of_a_newer_format_is_refused() -> None:
    newer = of_format(encode_controller(CONTROLLER)[1], NEWER)
    with pytest.raises(ContractError, match="in format 7"):
        decode_controller(newer)


@pytest.mark.feature("records-control-topics-page")
def test_a_page_token_of_a_newer_format_is_refused() -> None:
    request = query_service_pb2.ScanRequest(store="s")
    token = page_token_pb2.PageToken.FromString(base64.urlsafe_b64decode(paging.next_page_token(request, b"k")))
    token.format_version = NEWER
    request.page_token = base64.urlsafe_b64encode(token.SerializeToString()).decode()
    with pytest.raises(LookupFailure, match=r"page token, in format 7; .* begin the scan anew") as refused:
        key_range(request, SERDES["string"])
    assert refused.value.reason is Reason.INVALID_PAGE_TOKEN


@pytest.mark.parametrize(
    "kind",
    [
        query_service_pb2.ScanRequest,
        query_service_pb2.ScanWindowsRequest,
        query_service_pb2.ScanSessionsRequest,
        query_service_pb2.FetchWindowsRequest,
        query_service_pb2.FetchSessionsRequest,
        query_service_pb2.GetHistoryRequest,
    ],
)
def test_a_version_that_does_not_know_json_text_makes_the_same_page_tokens(kind: Any) -> None:
    """Or a scan through a router and nodes of two versions would end at its second page."""
    of_before = without_field(kind, "json_text")
    request = kind(store="s", json_text=True, reverse=True, page_size=5)
    request.forwarding.epoch = 3
    for name in ("from_ms", "to_ms", "as_of_ms"):
        if name in kind.DESCRIPTOR.fields_by_name:
            setattr(request, name, 7)
    same = of_before.FromString(request.SerializeToString())
    assert "json_text" not in same.DESCRIPTOR.fields_by_name
    assert paging.next_page_token(same, b"k") == paging.next_page_token(request, b"k")


def without_field(kind: Any, name: str) -> Any:
    """Return a message's class as it was before a field of this name came."""
    pool = descriptor_pool.DescriptorPool()
    for module in (struct_pb2, types_pb2, errors_pb2, query_service_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type if module is query_service_pb2 else ():
            kept = [field for field in message.field if field.name != name]
            del message.field[:]
            message.field.extend(kept)
        pool.Add(file)  # type: ignore[attr-defined] # the stubs lack it
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(kind.DESCRIPTOR.full_name))
