"""Records of a lookup: spans if its caller keeps its trace; a line of the log if it fails or is one of the share.

Most lookups leave neither, and cost nothing here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from google.protobuf.message import DecodeError

from router.choice.attempt_log import AttemptLog, AttemptRecord
from router.lookups.dispatch import Call, NodeAnswer
from router.lookups.stamps import stamps_in
from statehouse.errors import LookupFailure
from statehouse.observability.lookup_log import LookupLog, shown_key
from statehouse.observability.tracing import OpenSpan, Tracing
from statehouse.rpc.traced import caller_of, span_attributes, span_name
from statehouse.v1 import query_service_pb2, types_pb2

_REFUSALS_SHOWN: Final = 5
CANCELLED: Final = "CANCELLED"


class _TracedAttempts(AttemptLog):
    """The attempts of a traced lookup: each call has a span, below the router's own."""

    def __init__(self, tracing: Tracing, own: OpenSpan) -> None:
        super().__init__(is_traced=True)
        self._tracing, self._own = tracing, own
        self._open: dict[int, OpenSpan] = {}

    def begun(self, record: AttemptRecord) -> bytes:
        """Begin the span of a call; return the field of its request by which the node's span is below it."""
        span = self._tracing.begin(
            "hedge" if record.is_hedge else "attempt",
            self._own.context,
            kind="client",
            attributes={
                "statehouse.node": record.replica.instance_id,
                "statehouse.role": record.replica.role.name,
                "statehouse.round": record.round,
            },
        )
        self._open[id(record)] = span
        forwarding = types_pb2.Forwarding(traceparent=str(span.context))
        return query_service_pb2.GetRequest(forwarding=forwarding).SerializeToString()

    def ended(self, record: AttemptRecord, now: float, outcome: bytes | LookupFailure | None) -> None:
        """End the span of a call."""
        super().ended(record, now, outcome)
        span = self._open.pop(id(record))
        failure = outcome.reason.name if isinstance(outcome, LookupFailure) else ""
        span.set({"statehouse.outcome": failure or ("OVERTAKEN" if outcome is None else "OK")})
        span.end(failure)


class ObservedLookup:
    """A lookup with a record of it. `attempt_log` is to be filled."""

    __slots__ = ("attempt_log", "is_sampled", "span")

    def __init__(self, tracing: Tracing | None, span: OpenSpan | None, *, is_sampled: bool) -> None:
        self.span, self.is_sampled = span, is_sampled
        self.attempt_log = AttemptLog() if span is None or tracing is None else _TracedAttempts(tracing, span)


class LookupObserver:
    """Keeps what is to be kept of a router's lookups. Lives on the event loop."""

    def __init__(self, lookup_log: LookupLog, tracing: Tracing | None) -> None:
        self._log, self._tracing = lookup_log, tracing
        self._is_idle = tracing is None and not lookup_log.is_sampling

    def begin(self, method: str, data: bytes, context: Any) -> ObservedLookup | None:  # noqa: ANN401 - grpcio's or the link's
        """Return what observes a lookup about one key, by its serialized request; None if nothing is to be kept."""
        if self._is_idle:
            return None
        span = self._span(method, data, context)
        is_sampled = self._log.samples()
        return ObservedLookup(self._tracing, span, is_sampled=is_sampled) if span is not None or is_sampled else None

    def over(
        self,
        observed: ObservedLookup | None,
        method: str,
        data: bytes,
        call: Call | None,
        attempt_log: AttemptLog,
        came: NodeAnswer | LookupFailure | None,
        started_at: float,
    ) -> None:
        """Keep what came of a lookup: an answer, a failure, or nothing because its caller left."""
        failure = came if isinstance(came, LookupFailure) else None
        is_logged = failure is not None or (observed is not None and observed.is_sampled)
        span = None if observed is None else observed.span
        if not is_logged and span is None:
            return
        stamp = _stamp_in(method, came.data) if isinstance(came, NodeAnswer) else None
        outcome = CANCELLED if came is None else "OK" if failure is None else failure.reason.name
        if span is not None:
            _end(span, call, attempt_log, outcome, stamp)
        if not is_logged:
            return
        self._log.write(
            is_failure=failure is not None,
            store=None if call is None else call.store,
            method=method,
            partition=None if call is None else call.partition,
            key=_key_in(data) if self._log.has_keys else None,
            outcome=outcome if failure is None else "FAILED",
            reason=None if failure is None else failure.reason.name,
            ms=round((asyncio.get_running_loop().time() - started_at) * 1_000, 3),
            attempts=attempt_log.calls,
            hedged=attempt_log.is_hedged,
            node=None if stamp is None else stamp.host.instance_id,
            role=came.role.name if isinstance(came, NodeAnswer) else None,
            staleness_ms=None if stamp is None or not stamp.HasField("staleness_ms") else stamp.staleness_ms,
            refusals=_refusals(attempt_log) if failure is not None else None,
            trace_id=None if span is None else span.context.trace_id,
        )

    def failed(self, store: str, method: str, reason: str, lookups: int = 1) -> None:
        """Write of lookups of a batch, or of a page, that failed; of them nothing else is known here."""
        self._log.write(
            is_failure=True,
            store=store or None,
            method=method,
            outcome="FAILED",
            reason=reason,
            lookups=lookups if lookups > 1 else None,
        )

    def _span(self, method: str, data: bytes, context: Any) -> OpenSpan | None:  # noqa: ANN401 - as above
        if self._tracing is None:
            return None
        try:
            request = query_service_pb2.GetRequest.FromString(data)
        except DecodeError:
            return None  # which is said to the caller
        above = caller_of(request.forwarding.traceparent, context)
        if above is None:
            return None
        return self._tracing.begin(
            span_name(method), above, kind="server", attributes=span_attributes(method, request.store)
        )


def _end(
    span: OpenSpan,
    call: Call | None,
    attempt_log: AttemptLog,
    outcome: str,
    stamp: types_pb2.ReplicaStamp | None,
) -> None:
    span.set(
        {
            "statehouse.outcome": outcome,
            "statehouse.attempts": attempt_log.calls,
            "statehouse.hedged": attempt_log.is_hedged,
            **({} if call is None else {"statehouse.partition": call.partition}),
            **({} if stamp is None else {"statehouse.node": stamp.host.instance_id}),
        }
    )
    span.end("" if outcome in {"OK", CANCELLED} else outcome)


def _stamp_in(method: str, answer: bytes) -> types_pb2.ReplicaStamp | None:
    try:
        (stamp,) = stamps_in(method, answer)
    except DecodeError:
        return None
    return stamp


def _refusals(attempt_log: AttemptLog) -> list[str] | None:
    """Return what the candidates said first, for some of them."""
    said = [f"{name}: {failure.reason.name}" for name, (_, failure) in attempt_log.failures.items()]
    return said[:_REFUSALS_SHOWN] or None


def _key_in(data: bytes) -> str | None:
    try:
        return shown_key(query_service_pb2.GetRequest.FromString(data).key)
    except DecodeError:
        return None
