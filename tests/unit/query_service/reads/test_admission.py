"""Whether a node may answer by what the processor last reported, and what its answers say of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.unit.query_service.one_node import PARTITIONS, admission_of


def stamp(reports: Mapping[str, ProcessorReport], **bound: int) -> types_pb2.ReplicaStamp:
    admission = admission_of(NodeMetrics(), range(PARTITIONS), ["a"], reports)
    request = query_service_pb2.GetRequest(
        store="s", key=types_pb2.Key(text="a"), freshness=types_pb2.Freshness(**bound)
    )
    return admission.admit_key(request)[-1].stamp


def refusal(reports: Mapping[str, ProcessorReport], **bound: int) -> LookupFailure:
    with pytest.raises(LookupFailure) as told:
        stamp(reports, **bound)
    return told.value


@pytest.mark.feature("processor-age-ms")
def test_an_answer_says_when_the_processor_reported_and_what_was_left() -> None:
    told = stamp({"s": ProcessorReport(time.monotonic() - 60, 7)})
    assert 60_000 <= told.processor_age_ms < 90_000
    assert told.input_backlog == 7


@pytest.mark.feature("processor-age-ms")
def test_what_nobody_knows_is_absent_and_satisfies_no_bound() -> None:
    told = stamp({"other": ProcessorReport(time.monotonic(), 0)})
    assert not told.HasField("processor_age_ms")
    assert not told.HasField("input_backlog")
    told = stamp({"s": ProcessorReport(time.monotonic(), None)}, max_processor_age_ms=60_000)
    assert not told.HasField("input_backlog")
    assert refusal({}, max_processor_age_ms=10**9).reason is Reason.PROCESSOR_AGE_EXCEEDS_BOUND
    assert refusal({}, max_input_backlog=10**9).reason is Reason.INPUT_BACKLOG_EXCEEDS_BOUND


@pytest.mark.feature("bounds-read-active")
@pytest.mark.feature("max-processor-age")
def test_the_bounds_hold_at_the_moment_of_the_read() -> None:
    reports = {"s": ProcessorReport(time.monotonic() - 60, 7)}
    assert stamp(reports, max_processor_age_ms=90_000, max_input_backlog=7).input_backlog == 7
    told = refusal(reports, max_processor_age_ms=60_000 - 1)
    assert told.reason is Reason.PROCESSOR_AGE_EXCEEDS_BOUND
    assert told.elsewhere, "each node follows the commits topic on its own"
    assert "max_processor_age_ms 59999" in told.message
    assert refusal(reports, max_input_backlog=6).reason is Reason.INPUT_BACKLOG_EXCEEDS_BOUND


def test_each_stamp_is_of_its_own_moment() -> None:
    admission = admission_of(NodeMetrics(), range(PARTITIONS), ["a"])
    store, any_age = admission.store("s"), types_pb2.Freshness()

    def told(partition: int, requested_epoch: int = 0) -> types_pb2.ReplicaStamp:
        return admission.admit(store, partition, any_age, types_pb2.Forwarding(epoch=requested_epoch)).stamp

    first, second = told(0), told(1)
    assert admission.view.assignment is not None
    admission.view = replace(admission.view, assignment=replace(admission.view.assignment, epoch=8))
    third, fourth = told(0), told(0, requested_epoch=9)
    active, standby = types_pb2.REPLICA_ROLE_ACTIVE, types_pb2.REPLICA_ROLE_STANDBY
    assert [(each.partition, each.epoch, each.role, each.lag, each.host.instance_id) for each in (first, second)] == [
        (0, 7, active, 0, "n"),
        (1, 7, active, 5, "n"),
    ]
    assert [(each.partition, each.epoch, each.role) for each in (third, fourth)] == [(0, 8, active), (0, 8, standby)]
