"""What a node keeps of reads: spans that are linked to the processor's batches, and lines of the log."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from query_service.reads.batch_spans import BatchSpans
from query_service.reads.observed import ReadObserver
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import LinkContext
from statehouse.observability.lookup_log import LookupLog
from statehouse.runtime.trace_context import TraceContext
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.spans import CALLER, TRACE, TRACEPARENT, kept_in_memory, parent_of

STORE = "scores"
STAMP = types_pb2.ReplicaStamp(partition=3, role=types_pb2.REPLICA_ROLE_STANDBY, position=20, lag=2, staleness_ms=15)
ANSWER = query_service_pb2.GetResponse(found=True, replica=STAMP).SerializeToString()


def commit(batch_id: int, end: int, *, idle: bool = False, traceparent: str = "") -> commits_pb2.Commit:
    return commits_pb2.Commit(
        store=STORE,
        query="boards",
        batch_id=batch_id,
        changelog_ends=[commits_pb2.TopicOffset(topic="t", partition=3, offset=end)],
        idle=idle,
        traceparent=traceparent or f"00-{batch_id:032x}-{batch_id:016x}-01",
    )


def request(traceparent: str = "", key: str = "secret") -> query_service_pb2.GetRequest:
    forwarding = types_pb2.Forwarding(epoch=1, traceparent=traceparent)
    return query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key), forwarding=forwarding)


class Kept:
    """An observer of a node, and what it has kept."""

    def __init__(self, *, share: float = 0.0, has_keys: bool = False, traces: bool = True) -> None:
        tracing, self.spans = kept_in_memory()
        self.batches = BatchSpans()
        log = LookupLog(share, has_keys=has_keys)
        self.observer = ReadObserver("n1", log, tracing if traces else None, self.batches)

    @property
    def exporter(self) -> InMemorySpanExporter:
        return self.spans

    def answered(self, asked: Any, answer: Any = ANSWER, method: str = "Get") -> list[Any]:
        with capture_logs() as written:
            self.observer.answered(method, asked, LinkContext(None), answer, self.observer.began())
        return written


def test_a_traced_read_has_a_span_below_its_call():
    kept = Kept()
    assert kept.answered(request(TRACEPARENT)) == []
    (span,) = kept.exporter.get_finished_spans()
    assert (span.name, parent_of(span)) == ("statehouse.v1.QueryService/Get", CALLER)
    found = {name: span.attributes[f"statehouse.{name}"] for name in ("node", "store", "partition", "position", "lag")}
    assert found == {"node": "n1", "store": STORE, "partition": 3, "position": 20, "lag": 2}
    assert span.start_time is not None
    assert span.end_time is not None
    assert time.time_ns() - 60 * 10**9 < span.start_time <= span.end_time


@pytest.mark.feature("traces-client-over")
def test_it_is_linked_to_the_newest_batch_that_the_answer_has():
    kept = Kept()
    for batch_id, end in ((1, 10), (2, 20), (3, 30)):
        kept.batches.take(commit(batch_id, end))
    kept.answered(request(TRACEPARENT))
    ((link,),) = [span.links for span in kept.exporter.get_finished_spans()]
    assert f"{link.context.trace_id:032x}" == f"{2:032x}"
    assert dict(link.attributes or {}) == {"statehouse.query": "boards", "statehouse.batch_id": 2}


def test_which_batch_a_position_has():
    spans = BatchSpans()
    assert spans.newest_in(STORE, 3, 99) is None
    spans.take(commit(1, 10))
    spans.take(commit(2, 20, idle=True))
    spans.take(commit(3, 30, traceparent="nonsense"))
    newest = spans.newest_in(STORE, 3, 99)
    assert newest is not None
    assert (newest.batch_id, newest.context) == (1, TraceContext(f"{1:032x}", f"{1:016x}", is_sampled=True))
    assert spans.newest_in(STORE, 3, 9) is None
    assert spans.newest_in(STORE, 4, 99) is None, "nothing is known of that partition"
    for batch_id in range(4, 200):
        spans.take(commit(batch_id, 10 * batch_id))
    assert spans.newest_in(STORE, 3, 15) is None, "a bounded number is remembered"
    spans.forget(STORE)
    assert spans.newest_in(STORE, 3, 10_000) is None


def test_lookups_that_share_a_call_have_a_span_each():
    kept = Kept()
    other = TRACEPARENT.replace(TRACE, "9" * 32)
    asked = [request(TRACEPARENT), request(), request(other)]
    batch = query_service_pb2.BatchGetRequest(requests=asked)
    failure = LookupFailure(Reason.INVALID_KEY, "no").to_proto()
    answer = query_service_pb2.BatchGetResponse(
        results=[
            query_service_pb2.BatchGetResult(response=query_service_pb2.GetResponse(replica=STAMP)),
            query_service_pb2.BatchGetResult(response=query_service_pb2.GetResponse(replica=STAMP)),
            query_service_pb2.BatchGetResult(error=failure),
        ]
    ).SerializeToString()
    kept.answered(batch, answer, "BatchGet")
    first, second = kept.exporter.get_finished_spans()
    assert first.attributes["statehouse.outcome"] == "OK"
    assert f"{second.context.trace_id:032x}" == "9" * 32
    assert second.status.description == "INVALID_KEY"


def test_a_sampled_read_has_a_line_without_its_key():
    (line,) = Kept(share=1.0, traces=False).answered(request())
    assert "secret" not in str(line)
    assert (line["store"], line["partition"], line["node"], line["role"]) == (STORE, 3, "n1", "STANDBY")
    assert (line["outcome"], line["lag"], line["staleness_ms"]) == ("OK", 2, 15)
    assert line["ms"] >= 0


def test_keys_are_there_if_they_are_asked_for():
    (line,) = Kept(share=1.0, has_keys=True).answered(request(key="k" * 1_000))
    assert line["key"] == "k" * 200


def test_a_failed_read_has_a_line_even_if_nothing_is_kept_of_others():
    observer = Kept(traces=False).observer
    assert not observer.is_on
    assert observer.began() == 0
    with capture_logs() as written:
        observer.failed("Get", request(), LinkContext(None), "PARTITION_NOT_OWNED", 0)
    (line,) = written
    assert (line["outcome"], line["reason"], line["node"]) == ("FAILED", "PARTITION_NOT_OWNED", "n1")
    assert "ms" not in line, "it isn't measured"


def test_an_answer_as_a_message_has_its_stamp():
    kept = Kept(share=1.0)
    asked = query_service_pb2.FetchWindowsRequest(store=STORE)
    (line,) = kept.answered(asked, query_service_pb2.FetchWindowsResponse(replica=STAMP), "FetchWindows")
    assert line["partition"] == 3
    page = query_service_pb2.ScanResponse(replicas=[STAMP]).SerializeToString()
    (line,) = kept.answered(query_service_pb2.ScanRequest(store=STORE), page, "Scan")
    assert line["partition"] == 3


def test_nothing_is_kept_by_default():
    kept = Kept(traces=False)
    assert kept.answered(request(TRACEPARENT)) == []
    assert kept.exporter.get_finished_spans() == ()
