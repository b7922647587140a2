"""What a node keeps of reads: a span if the caller keeps its trace; a line of the log of failures, and a share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from query_service.reads.batch_spans import BatchSpans
from statehouse.observability.lookup_log import LookupLog, shown_key
from statehouse.observability.tracing import Tracing
from statehouse.rpc.traced import caller_of, span_attributes, span_name
from statehouse.runtime.trace_context import TraceContext
from statehouse.serdes.wire import frames
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2

_GET: Final = "Get"
_SERIALIZED: Final[Mapping[str, Any]] = {
    _GET: query_service_pb2.GetResponse,
    "Scan": query_service_pb2.ScanResponse,
    "ScanWindows": query_service_pb2.ScanWindowsResponse,
    "ScanSessions": query_service_pb2.ScanSessionsResponse,
}
_MS_NS: Final = 1_000_000


class ReadObserver:
    """Keeps what is to be kept of a node's reads. Lives on the event loop. `instance_id`: the node's own."""

    def __init__(self, instance_id: str, lookup_log: LookupLog, tracing: Tracing | None, batches: BatchSpans) -> None:
        self._instance_id, self._log, self._tracing, self._batches = instance_id, lookup_log, tracing, batches
        self.is_on = tracing is not None or lookup_log.is_sampling
        """Whether anything may be kept of reads that go well."""

    def began(self) -> int:
        """Return when a read begins, epoch nanoseconds; 0 if only failures are kept."""
        return time.time_ns() if self.is_on else 0

    def answered(self, method: str, request: Any, context: Any, answer: Any, began_ns: int) -> None:  # noqa: ANN401 - of any method
        """Keep what is to be kept of a read that went well."""
        if not self.is_on:
            return
        if isinstance(request, query_service_pb2.BatchGetRequest):
            self._batch_answered(request, context, answer, began_ns)
            return
        above = self._caller(request.forwarding.traceparent, context)
        is_sampled = self._log.samples()
        if above is not None or is_sampled:
            stamp = _stamp_in(method, answer)
            key = getattr(request, "key", None)
            self._keep(method, request.store, key, stamp, None, above, began_ns, is_logged=is_sampled)

    def failed(self, method: str, request: Any, context: Any, reason: str, began_ns: int) -> None:  # noqa: ANN401 - as above
        """Keep what is to be kept of a read that failed."""
        if isinstance(request, query_service_pb2.BatchGetRequest):
            self.entry_failed("", reason, method="BatchGet")
            return
        above = self._caller(request.forwarding.traceparent, context)
        key = getattr(request, "key", None)
        self._keep(method, request.store, key, None, reason, above, began_ns, is_logged=True)

    def entry_failed(self, store: str, reason: str, *, method: str = _GET) -> None:
        """Keep that a lookup of a batch failed."""
        self._keep(method, store, None, None, reason, None, 0, is_logged=True)

    def _batch_answered(
        self,
        batch: query_service_pb2.BatchGetRequest,
        context: Any,  # noqa: ANN401 - as above
        answer: bytes,
        began_ns: int,
    ) -> None:
        """Keep each lookup of a batch by itself: several callers' go together. They have the batch's time."""
        shared = self._caller("", context)
        for lookup, result in zip(batch.requests, frames(answer), strict=False):
            above, is_sampled = self._caller(lookup.forwarding.traceparent, context) or shared, self._log.samples()
            if above is None and not is_sampled:
                continue
            parsed = query_service_pb2.BatchGetResult.FromString(result)
            has_failed = parsed.HasField("error")
            stamp = None if has_failed else parsed.response.replica
            reason = _reason_in(parsed) if has_failed else None
            # A failed one has its line already.
            is_logged = is_sampled and not has_failed
            self._keep(_GET, lookup.store, lookup.key, stamp, reason, above, began_ns, is_logged=is_logged)

    def _caller(self, in_request: str, context: Any) -> TraceContext | None:  # noqa: ANN401 - as above
        return None if self._tracing is None else caller_of(in_request, context)

    def _keep(
        self,
        method: str,
        store: str,
        key: types_pb2.Key | None,
        stamp: types_pb2.ReplicaStamp | None,
        reason: str | None,
        above: TraceContext | None,
        began_ns: int,
        *,
        is_logged: bool,
    ) -> None:
        ended_ns = time.time_ns()
        if above is not None:
            self._span(method, store, stamp, reason, above, began_ns or ended_ns, ended_ns)
        if not is_logged:
            return
        self._log.write(
            is_failure=reason is not None,
            store=store or None,
            method=method,
            partition=stamp.partition if stamp is not None and stamp.HasField("partition") else None,
            key=shown_key(key) if self._log.has_keys and key is not None else None,
            node=self._instance_id,
            role=None if stamp is None else types_pb2.ReplicaRole.Name(stamp.role).removeprefix("REPLICA_ROLE_"),
            outcome="OK" if reason is None else "FAILED",
            reason=reason,
            ms=round((ended_ns - began_ns) / _MS_NS, 3) if began_ns else None,
            lag=stamp.lag if stamp is not None and stamp.HasField("lag") else None,
            staleness_ms=stamp.staleness_ms if stamp is not None and stamp.HasField("staleness_ms") else None,
            trace_id=None if above is None else above.trace_id,
        )

    def _span(
        self,
        method: str,
        store: str,
        stamp: types_pb2.ReplicaStamp | None,
        reason: str | None,
        above: TraceContext,
        began_ns: int,
        ended_ns: int,
    ) -> None:
        if self._tracing is None:
            return
        about = span_attributes(method, store) | {"statehouse.node": self._instance_id}
        about["statehouse.outcome"] = reason or "OK"
        for name in ("partition", "position", "lag", "staleness_ms"):
            if stamp is not None and stamp.HasField(name):
                about[f"statehouse.{name}"] = getattr(stamp, name)
        span = self._tracing.begin(span_name(method), above, kind="server", attributes=about, started_ns=began_ns)
        if stamp is not None and stamp.HasField("position"):
            batch = self._batches.newest_in(store, stamp.partition, stamp.position)
            if batch is not None:
                span.link(batch.context, {"statehouse.query": batch.query, "statehouse.batch_id": batch.batch_id})
        span.end(reason or "", ended_ns)


def _reason_in(result: query_service_pb2.BatchGetResult) -> str:
    return errors_pb2.ErrorReason.Name(result.error.reason).removeprefix("ERROR_REASON_")


def _stamp_in(method: str, answer: Any) -> types_pb2.ReplicaStamp | None:  # noqa: ANN401 - of any method
    """Return the stamp of an answer, of a page's the first."""
    if isinstance(answer, bytes):
        if (response := _SERIALIZED.get(method)) is None:
            return None
        try:
            answer = response.FromString(answer)
        except DecodeError:
            return None
    if hasattr(answer, "replicas"):
        return answer.replicas[0] if answer.replicas else None
    stamp: types_pb2.ReplicaStamp | None = getattr(answer, "replica", None)
    return stamp
