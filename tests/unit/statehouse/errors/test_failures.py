"""The error table and its wire forms."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2

from statehouse.errors import DOMAIN, REASONS, LookupFailure, Reason, reason_name, wire_name
from statehouse.errors.statuses import to_status
from statehouse.v1 import errors_pb2, types_pb2


def test_every_reason_of_the_contract_is_in_the_table() -> None:
    numbers = set(errors_pb2.ErrorReason.values()) - {errors_pb2.ERROR_REASON_UNSPECIFIED}
    assert {reason.value for reason in Reason} == numbers
    assert set(REASONS) == set(Reason)
    assert all(spec.meaning and spec.remedy for spec in REASONS.values())


@pytest.mark.feature("failures-reason-list")
def test_failure_survives_the_wire() -> None:
    route = errors_pb2.Route(store="s", partition=1, epoch=4, active=types_pb2.Host(instance_id="a"))
    candidate = errors_pb2.Candidate(
        host=types_pb2.Host(instance_id="b"), reason=errors_pb2.ERROR_REASON_UNREACHABLE, detail="refused"
    )
    failure = LookupFailure(
        Reason.PARTITION_NOT_OWNED, "elsewhere", {"store": "s"}, route=route, candidates=[candidate]
    )
    back = LookupFailure.from_proto(failure.to_proto())
    assert (back.reason, back.message, back.metadata) == (failure.reason, failure.message, failure.metadata)
    assert back.route == route
    assert back.candidates == (candidate,)
    assert "b: UNREACHABLE refused" in str(back)


def test_status_has_error_info_for_any_client() -> None:
    status = to_status(LookupFailure(Reason.UNKNOWN_STORE, "no store 'x'", {"store": "x"}))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (wire_name(Reason.UNKNOWN_STORE), DOMAIN, {"store": "x"})
    assert status.code == REASONS[Reason.UNKNOWN_STORE].code


@pytest.mark.feature("overload-bounded-queues")
def test_who_meets_an_overloaded_server_is_told_when_to_ask_again() -> None:
    *_, detail = to_status(LookupFailure(Reason.OVERLOADED, "full")).details
    again = error_details_pb2.RetryInfo()
    assert detail.Unpack(again)
    assert again.retry_delay.ToTimedelta().total_seconds() == 1


def test_reason_of_a_newer_version_keeps_its_message() -> None:
    newer = errors_pb2.LookupError(message="something new")
    newer.MergeFromString(b"\x08\xe7\x07")  # reason = 999
    back = LookupFailure.from_proto(newer)
    assert (back.reason, back.message) == (Reason.INTERNAL, "something new")
    assert reason_name(999) == "REASON_999"


def refused(reason: Reason) -> errors_pb2.Candidate:
    return errors_pb2.Candidate(host=types_pb2.Host(instance_id="b"), reason=reason.value)


@pytest.mark.feature("failures-are-seen")
def test_with_the_processor_dead_more_standbys_are_no_remedy() -> None:
    dead = [refused(Reason.UNREACHABLE), refused(Reason.PROCESSOR_AGE_EXCEEDS_BOUND)]
    assert "Check that the processor runs" in LookupFailure(Reason.NO_REPLICA_AVAILABLE, "none", candidates=dead).remedy
    alone = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "none", candidates=dead[:1])
    assert "num_standby_replicas" in alone.remedy
