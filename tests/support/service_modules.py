"""The modules of all services that our servers have."""

from __future__ import annotations

from typing import Final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from statehouse.v1 import fleet_service_pb2, node_service_pb2, peer_service_pb2, query_service_pb2

SERVICE_MODULES: Final = (
    query_service_pb2,
    fleet_service_pb2,
    node_service_pb2,
    peer_service_pb2,
    health_pb2,
    reflection_pb2,
)
