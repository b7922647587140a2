"""Which trace a call belongs to, by its request or by its metadata."""

from __future__ import annotations

from typing import Any, Final

from statehouse.link.link import LinkContext
from statehouse.runtime.trace_context import TRACEPARENT, TraceContext, sampled_context

RPC: Final = "rpc.system"
_SERVICE: Final = "statehouse.v1.QueryService"


def caller_of(in_request: str, context: Any) -> TraceContext | None:  # noqa: ANN401 - grpcio's, or the link's
    """Return the caller's span if it keeps its trace; else None.

    `in_request`: `forwarding.traceparent`, which counts before the metadata: lookups of several traces share a call.
    Calls that come over the link have no metadata: the proxy passes those with a trace's context on as gRPC.
    """
    if in_request or isinstance(context, LinkContext):
        return sampled_context(in_request)
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT:
            return sampled_context(value if isinstance(value, str) else value.decode("latin-1"))
    return None


def span_name(method: str) -> str:
    """Return the name of the span of a call of QueryService."""
    return f"{_SERVICE}/{method}"


def span_attributes(method: str, store: str) -> dict[str, str | int | float | bool]:
    """Return the attributes that all spans of such calls have."""
    return {RPC: "grpc", "rpc.service": _SERVICE, "rpc.method": method, "statehouse.store": store}
