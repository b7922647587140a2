"""Lines of outcomes become records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.errors.statuses import to_status
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, AT_LEAST, MAX_LAG, MAX_STALENESS, History, LookupRecord, Recorder
from tests.robustness.outcomes import LARGEST_LAG, LARGEST_STALENESS_MS, Client, Outcomes

HOST = types_pb2.Host(instance_id="node-a", host="127.0.0.1", port=7101)
STAMP = types_pb2.ReplicaStamp(partition=3, epoch=5, host=HOST, role=types_pb2.REPLICA_ROLE_STANDBY, position=0)
CLIENTS = (
    *(Client(f"c-{bound}", "r", bound) for bound in (AT_LEAST, MAX_LAG, MAX_STALENESS, ACTIVE_ONLY)),
    Client("c-batch", "r", AT_LEAST, batch=2),
)
BATCH = len(CLIENTS) - 1


class Reading:
    """Outcomes that are read, and what was recorded of them."""

    def __init__(self, path: Path) -> None:
        self._path, self._recorder = path, Recorder(path)
        self.began_at = -self._recorder.at(0.0)
        self.outcomes = Outcomes(CLIENTS, [("k", 3), ("absent", 1)], {"127.0.0.1:7": "r2"}, self._recorder)

    def close(self) -> None:
        self._recorder.__exit__()

    def recorded(self, **said: Any) -> LookupRecord:
        """Record an outcome of one lookup; nothing may be recorded after it."""
        (record,) = self.all_recorded(**said)
        return record

    def all_recorded(self, **said: Any) -> list[LookupRecord]:
        """Record an outcome; nothing may be recorded after it."""
        self.outcomes.take(_line(due_at=self.began_at + 2.0, **said))
        self.close()
        records = History.load(self._path).lookups
        assert [record.due_at for record in records] == pytest.approx([2.0] * len(records))
        return [replace(record, due_at=2.0) for record in records]


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    made = Reading(tmp_path / "history.jsonl")
    yield made
    made.close()


def test_an_answer_says_what_was_found_and_how_fresh_it_was(reading: Reading) -> None:
    response = query_service_pb2.GetResponse(found=True, value=types_pb2.Value(text="17"), replica=STAMP)
    answer = LookupRecord(
        "c-at_least", "r", "k", 3, 2.0, 0.25, AT_LEAST, at_least=9,
        found=True, version=17, host="node-a", role="STANDBY", epoch=5, position=0,
    )  # fmt: skip
    assert reading.recorded(at_least=[9], response=_text(response.SerializeToString())) == answer


@pytest.mark.parametrize(
    ("client", "bound"),
    [
        (1, {"bound": MAX_LAG, "max_lag": LARGEST_LAG}),
        (2, {"bound": MAX_STALENESS, "max_staleness_ms": LARGEST_STALENESS_MS}),
        (3, {"bound": ACTIVE_ONLY}),
    ],
)
def test_what_its_client_always_asks_for_is_said(reading: Reading, client: int, bound: dict[str, Any]) -> None:
    response = query_service_pb2.GetResponse(found=False, replica=STAMP)
    absent = LookupRecord(
        CLIENTS[client].name, "r", "absent", 1, 2.0, 0.25,
        found=False, host="node-a", role="STANDBY", epoch=5, position=0, **bound,
    )  # fmt: skip
    assert reading.recorded(client=client, keys=[1], response=_text(response.SerializeToString())) == absent


def test_a_failure_says_its_reason_and_that_of_each_candidate(reading: Reading) -> None:
    candidate = errors_pb2.Candidate(host=HOST, reason=errors_pb2.ERROR_REASON_UNREACHABLE, detail="refused")
    failure = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "nobody is there", candidates=(candidate,))
    details = _text(to_status(failure).SerializeToString())
    record = reading.recorded(code=failure.code, message="nobody is there", details=details)
    assert not record.answered
    assert (record.reason, record.message) == ("NO_REPLICA_AVAILABLE", "nobody is there")
    assert record.candidates == ("node-a: UNREACHABLE refused",)


def test_a_batch_says_what_came_of_each_key(reading: Reading) -> None:
    found = query_service_pb2.GetResponse(found=True, value=types_pb2.Value(text="17"), replica=STAMP)
    refused = LookupFailure(Reason.LAG_EXCEEDS_BOUND, "too far behind").to_proto()
    results = [query_service_pb2.BatchGetResult(response=found), query_service_pb2.BatchGetResult(error=refused)]
    response = _text(query_service_pb2.BatchGetResponse(results=results).SerializeToString())
    answered, failed = reading.all_recorded(client=BATCH, keys=[0, 1], at_least=[9, None], response=response)
    assert (answered.key, answered.partition, answered.at_least, answered.version) == ("k", 3, 9, 17)
    assert (failed.key, failed.partition, failed.at_least, failed.answered) == ("absent", 1, None, False)
    assert (failed.reason, failed.message) == ("LAG_EXCEEDS_BOUND", "too far behind")


def test_a_batch_that_failed_has_failed_for_each_key(reading: Reading) -> None:
    code = grpc.StatusCode.UNAVAILABLE.value[0]
    records = reading.all_recorded(client=BATCH, keys=[0, 1], at_least=[9, None], code=code, message="refused")
    assert [(record.key, record.reason) for record in records] == [("k", "UNREACHABLE"), ("absent", "UNREACHABLE")]


def test_a_batch_with_too_few_answers_is_an_error(reading: Reading) -> None:
    result = query_service_pb2.BatchGetResult(response=query_service_pb2.GetResponse(found=False, replica=STAMP))
    response = _text(query_service_pb2.BatchGetResponse(results=[result]).SerializeToString())
    with pytest.raises(ValueError, match="shorter"):
        reading.outcomes.take(_line(client=BATCH, keys=[0, 1], at_least=[None, None], response=response))


@pytest.mark.parametrize("details", [None, "AA=="])
def test_a_failure_without_details_that_can_be_read_has_the_reason_of_its_code(
    reading: Reading, details: str | None
) -> None:
    code = grpc.StatusCode.UNAVAILABLE.value[0]
    record = reading.recorded(code=code, message="connection refused", details=details)
    assert (record.reason, record.message, record.candidates) == ("UNREACHABLE", "connection refused", ())


@pytest.mark.parametrize(
    "line",
    [
        b'{"client": 0, "key": 0, "du',
        b"{}",
        b"",
        json.dumps({"client": 9}).encode(),
    ],
)
def test_a_broken_line_is_an_error(reading: Reading, line: bytes) -> None:
    with pytest.raises((ValueError, LookupError)):
        reading.outcomes.take(line)


@pytest.mark.parametrize("said", [{"code": 99}, {"response": "AA=="}, {"response": "?"}])
def test_a_line_that_makes_no_sense_is_an_error(reading: Reading, said: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r".+"):
        reading.outcomes.take(_line(**said))


def test_a_record_has_the_router_that_was_asked(reading: Reading) -> None:
    response = query_service_pb2.GetResponse(replica=STAMP)
    assert reading.recorded(response=_text(response.SerializeToString()), router="127.0.0.1:7").router == "r2"


def _line(**said: Any) -> bytes:
    rest = {"client": 0, "keys": [0], "due_at": 1.0, "took_s": 0.25, "at_least": [None], "router": ""}
    failure = {"response": None, "code": 0, "message": "", "details": None}
    return json.dumps({**rest, **failure, **said}).encode() + b"\n"


def _text(message: bytes) -> str:
    return base64.b64encode(message).decode()
