"""When a store is built: by each piece of evidence, and not by anything else."""

from __future__ import annotations

import pytest

from statehouse.contract.first_batch import earliest, ends_proven, obstacle
from statehouse.contract.processor_reports import ProcessorReports
from statehouse.control.v1 import commits_pb2
from statehouse.errors import Reason


def commit(ends: dict[int, int], *, no_batch: bool = False, backlog: int | None = None) -> commits_pb2.Commit:
    record = commits_pb2.Commit(store="s", no_batch=no_batch, input_backlog=backlog)
    record.changelog_ends.extend(
        commits_pb2.TopicOffset(topic="t", partition=partition, offset=end) for partition, end in ends.items()
    )
    return record


def reason(position: int, proven: dict[int, int] | None, *, had_records: bool = False, is_read: bool = True) -> object:
    found = obstacle("s", 0, position, proven, had_records=had_records, is_read=is_read)
    return None if found is None else found[0]


def test_nothing_is_answered_before_a_batch_is_known():
    assert reason(0, None) is Reason.STORE_NOT_BUILT
    assert reason(7, None) is Reason.STORE_NOT_BUILT, "an aborted batch has offsets, too"
    assert reason(0, None, is_read=False) is Reason.PARTITION_RESTORING, "the record may be there"


def test_a_batch_proves_what_lies_before_its_end():
    assert reason(4, {0: 5}) is Reason.STORE_NOT_BUILT, "a part of it is read"
    assert reason(5, {0: 5}) is None
    assert reason(0, {0: 0}) is None, "the batch had nothing for the partition"
    assert reason(0, {1: 5}) is None, "brokers named no end of the partition; the batch is committed"
    assert reason(5, {0: 5}, is_read=False) is None, "a later record takes nothing back"


def test_a_log_that_had_records_is_proof_without_a_report():
    assert reason(3, None, had_records=True) is None
    assert reason(3, {0: 9}, had_records=True, is_read=False) is None


@pytest.mark.parametrize(
    ("record", "proven"),
    [
        (commit({0: 5}), {0: 5}),
        (commit({0: 5}, backlog=9), {0: 5}),
        (commit({}, no_batch=True, backlog=0), {}),
        (commit({0: 2}, no_batch=True, backlog=0), {0: 2}),
        (commit({0: 2}, no_batch=True, backlog=1), None),
        (commit({0: 2}, no_batch=True), None),
    ],
)
def test_a_record_proves_a_batch_or_that_there_was_nothing_for_one(
    record: commits_pb2.Commit, proven: dict[int, int] | None
):
    assert ends_proven(record) == proven


def test_of_two_proofs_the_easier_counts():
    assert earliest(None, None) is None
    assert earliest({0: 5}, None) == {0: 5} == earliest(None, {0: 5})
    assert earliest({0: 5, 1: 9}, {0: 7, 1: 4}) == {0: 5, 1: 4}
    assert earliest({0: 5}, {0: 7, 1: 4}) == {0: 5}, "where the first names no end, 0 is enough"
    known = {0: 5, 1: 9}
    assert earliest(known, {0: 6, 1: 9}) is known


def test_reports_are_forgotten_with_their_application():
    reports = ProcessorReports()
    reports.take(commit({0: 5}, no_batch=True, backlog=3), 1.0)
    assert "s" in reports.latest
    assert "s" not in reports.proven
    reports.take(commit({0: 9}), 2.0)
    reports.take(commit({0: 12}), 3.0)
    assert reports.proven["s"] == {0: 9}
    reports.forget("s")
    assert "s" not in reports.proven
