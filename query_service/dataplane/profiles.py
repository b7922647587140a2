"""Profiles of the data plane, for those who look why a node is slow or large."""

from __future__ import annotations

import asyncio

from query_service.dataplane.orders import DataPlane, DataPlaneFailed
from statehouse.control.v1 import engine_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import node_service_pb2

_KINDS = {
    node_service_pb2.PROFILE_KIND_CPU: engine_pb2.ENGINE_PROFILE_KIND_CPU,
    node_service_pb2.PROFILE_KIND_HEAP: engine_pb2.ENGINE_PROFILE_KIND_HEAP,
    node_service_pb2.PROFILE_KIND_GOROUTINES: engine_pb2.ENGINE_PROFILE_KIND_GOROUTINES,
}
_ENDS_WITHIN_S = 10.0


async def made_profile(
    plane: DataPlane | None, kind: node_service_pb2.ProfileKind.ValueType, duration_ms: int
) -> bytes:
    """Return a profile in pprof's format; one of processor time is of the next `duration_ms`.

    Raises:
        LookupFailure: INVALID_REQUEST, there is no such kind, or the node has no data plane; OVERLOADED, one of
            processor time is being made; INTERNAL, it doesn't answer.

    """
    if (wanted := _KINDS.get(kind)) is None:
        raise LookupFailure(Reason.INVALID_REQUEST, f"there is no profile of kind {kind}")
    if plane is None:
        raise LookupFailure(
            Reason.INVALID_REQUEST, "this node has no data plane that could be profiled: it runs with engine = python"
        )
    order = engine_pb2.EngineOrder(profile=engine_pb2.EngineProfile(kind=wanted, millis=duration_ms))
    try:
        async with asyncio.timeout(duration_ms / 1_000 + _ENDS_WITHIN_S):
            return (await asyncio.wrap_future(plane.begin(order))).profile
    except TimeoutError:
        raise LookupFailure(Reason.INTERNAL, "the data plane has not answered") from None
    except DataPlaneFailed as failure:
        raise LookupFailure(Reason.OVERLOADED, f"the data plane made no profile: {failure}") from failure
