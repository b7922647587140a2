"""A fleet as its router and nodes tell of it, recorded once: one of two nodes restores, and a query is silent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
from google.protobuf import text_format
from grpc_status import rpc_status

from statehouse.contract.store_sums import StoreSums, SumBounds, SummedEntry, digest_of
from statehouse.errors import LookupFailure
from statehouse.errors.statuses import to_status
from statehouse.v1 import (
    fleet_service_pb2,
    node_service_pb2,
    node_service_pb2_grpc,
    types_pb2,
    verification_pb2,
)
from tests.support.fake_router import FakeRouter, fake_router

FLEET = text_format.Parse(
    """
    application_id: "shop" epoch: 7 reason: "node-b joined" served_by: SERVED_BY_PROXY_WITH_EXPRESS_WAY
    stores {
      name: "boards" kind: "key-value" key_serde: "string" value_serde: "json" partition_count: 2 sub_topology: 0
      changelog_topic: "shop-boards-changelog" partitioner: "murmur2"
    }
    stores {
      name: "prices" kind: "key-value" key_serde: "string" value_serde: "double" partition_count: 1 global: true
      changelog_topic: "prices" partitioner: "murmur2"
    }
    stores {
      name: "visits" kind: "session" key_serde: "string" value_serde: "long" partition_count: 2 sub_topology: 1
      changelog_topic: "shop-visits-updates" partitioner: "murmur2" ephemeral: true
    }
    nodes {
      host { instance_id: "node-a" host: "10.0.0.1" port: 7101 } incarnation: "a1" state: "RUNNING" version: "0.2.0"
      epoch: 7 heartbeat_age_ms: 240 reachable: true capacity: 2 rack: "r1"
    }
    nodes {
      host { instance_id: "node-b" host: "10.0.0.2" port: 7101 } incarnation: "b1" state: "REBALANCING"
      version: "0.2.0" epoch: 7 heartbeat_age_ms: 910 reachable: true capacity: 1 rack: "r2" dynamic: true
    }
    tasks {
      task: "0_0" active: "node-a" standbys: "node-b" reason: "first plan"
      replicas { instance_id: "node-a" role: REPLICA_ROLE_ACTIVE state: "running" position: 120 lag: 0 }
      replicas { instance_id: "node-b" role: REPLICA_ROLE_STANDBY state: "restoring" position: 40 lag: 80 }
    }
    tasks {
      task: "0_1" active: "node-a" warm_ups: "node-b" reason: "the active is to move to node-b"
      replicas { instance_id: "node-a" role: REPLICA_ROLE_ACTIVE state: "running" position: 75 lag: 2 }
      replicas { instance_id: "node-b" role: REPLICA_ROLE_WARM_UP state: "restoring" }
    }
    tasks {
      task: "1_0" active: "node-b" reason: "first plan"
      replicas { instance_id: "node-b" role: REPLICA_ROLE_ACTIVE state: "running" position: 9 lag: 0 }
    }
    tasks { task: "1_1" reason: "no node lives" }
    tasks {
      task: "global/prices"
      replicas { instance_id: "node-a" role: REPLICA_ROLE_GLOBAL state: "running" position: 31 lag: 0 }
      replicas { instance_id: "node-b" role: REPLICA_ROLE_GLOBAL state: "running" position: 30 lag: 1 }
    }
    queries {
      name: "scores" stores: "boards" record_age_ms: 700 batch_id: 6 batch_age_ms: 12345 input_backlog: 4980
      status {
        input_rows_per_second: 99.6 backlog: 5000 backlog_eta_ms: 50400 watermark_ms: 61500 state_rows: 1234
        state_bytes: 65536 dead_letters: 3 late_rows: 7
        dead_letters_by_reason { key: "not_json" value: 1 } dead_letters_by_reason { key: "null_key" value: 2 }
      }
      state: "RESTARTING" heard_age_ms: 700
      failure { restarts: 5 reason: "ZeroDivisionError at topology.py:19, record orders/3/812" }
    }
    queries {
      name: "visits" stores: "visits" record_age_ms: 31000 batch_id: 2 idle: true state: "SILENT" heard_age_ms: 31000
    }
    controller { host: "driver-1:42" record_age_ms: 300 }
    """,
    fleet_service_pb2.GetFleetResponse(),
)

PARTITIONS: Mapping[str, Sequence[fleet_service_pb2.PartitionInfo]] = {
    "boards": text_format.Parse(
        """
        partitions {
          route { store: "boards" partition: 0 epoch: 7 active { instance_id: "node-a" host: "10.0.0.1" port: 7101 } }
          task: "0_0"
          replicas { instance_id: "node-a" role: REPLICA_ROLE_ACTIVE state: "running" position: 120 lag: 0 }
          replicas { instance_id: "node-b" role: REPLICA_ROLE_STANDBY state: "restoring" position: 40 lag: 80 }
        }
        partitions {
          route { store: "boards" partition: 1 epoch: 7 active { instance_id: "node-a" host: "10.0.0.1" port: 7101 } }
          task: "0_1"
          replicas { instance_id: "node-a" role: REPLICA_ROLE_ACTIVE state: "running" position: 75 lag: 2 }
          replicas { instance_id: "node-b" role: REPLICA_ROLE_WARM_UP state: "restoring" }
        }
        """,
        fleet_service_pb2.ListPartitionsResponse(),
    ).partitions,
    "prices": text_format.Parse(
        """
        partitions {
          route { store: "prices" partition: 0 epoch: 7 } task: "global/prices"
          replicas { instance_id: "node-a" role: REPLICA_ROLE_GLOBAL state: "running" position: 31 lag: 0 }
          replicas { instance_id: "node-b" role: REPLICA_ROLE_GLOBAL state: "running" position: 30 lag: 1 }
        }
        """,
        fleet_service_pb2.ListPartitionsResponse(),
    ).partitions,
    "visits": text_format.Parse(
        """
        partitions {
          route { store: "visits" partition: 0 epoch: 7 active { instance_id: "node-b" host: "10.0.0.2" port: 7101 } }
          task: "1_0"
          replicas { instance_id: "node-b" role: REPLICA_ROLE_ACTIVE state: "running" position: 9 lag: 0 }
        }
        partitions { route { store: "visits" partition: 1 epoch: 7 } task: "1_1" }
        """,
        fleet_service_pb2.ListPartitionsResponse(),
    ).partitions,
}

NODES: Mapping[str, node_service_pb2.GetNodeResponse] = {
    "node-a": text_format.Parse(
        """
        host { instance_id: "node-a" } state: "RUNNING" epoch: 7
        tasks {
          task: "0_0" role: REPLICA_ROLE_ACTIVE state: "running"
          stores { store: "boards" partition: 0 position: 120 end_offset: 120 lag: 0 lookups: 4321 }
        }
        """,
        node_service_pb2.GetNodeResponse(),
    ),
    "node-b": text_format.Parse(
        """
        host { instance_id: "node-b" } state: "REBALANCING" epoch: 7
        tasks {
          task: "0_0" role: REPLICA_ROLE_STANDBY state: "restoring"
          stores { store: "boards" partition: 0 position: 40 end_offset: 120 restored_from: 10 lag: 80 lookups: 0 }
        }
        tasks {
          task: "0_1" role: REPLICA_ROLE_WARM_UP state: "restoring"
          stores { store: "boards" partition: 1 }
        }
        """,
        node_service_pb2.GetNodeResponse(),
    ),
}


class RecordedNode(node_service_pb2_grpc.NodeServiceServicer):
    """A node that says always the same, or what a test has put there; `before_answer` is called first.

    `stored`: what its engines hold for keys; `logged`: what the changelogs say. Both are of all stores and partitions.
    `bounds`: which entries a replica counts, and `logged_bounds`, which ones a log counts; None: a key-value store's.
    Sums are made of all entries all the same.
    """

    def __init__(self, said: node_service_pb2.GetNodeResponse) -> None:
        self.said = node_service_pb2.GetNodeResponse()
        self.said.CopyFrom(said)
        self.before_answer: Callable[[], None] = lambda: None
        self.logged = {b"player-%d" % each: bytes(8) + b"%d points" % each for each in range(3)}
        self.stored = dict(self.logged)
        self.bounds: SumBounds | None = None
        self.logged_bounds: SumBounds | None = None
        self.sums: list[verification_pb2.SumStoreRequest] = []
        self.restored: list[verification_pb2.RestoreReplicaRequest] = []
        self.sum_failures: list[LookupFailure] = []
        """What sums fail with, one after the other, before one goes well."""

    def GetNode(self, _request: node_service_pb2.GetNodeRequest, _context: Any) -> node_service_pb2.GetNodeResponse:  # noqa: N802 - the service's name
        self.before_answer()
        return self.said

    def Drain(self, _request: node_service_pb2.DrainRequest, _context: Any) -> node_service_pb2.DrainResponse:  # noqa: N802 - the service's name
        return node_service_pb2.DrainResponse()

    def Profile(self, _request: node_service_pb2.ProfileRequest, _context: Any) -> node_service_pb2.ProfileResponse:  # noqa: N802 - the service's name
        return node_service_pb2.ProfileResponse()

    def SumStore(  # noqa: N802 - the service's name
        self,
        request: verification_pb2.SumStoreRequest,
        context: Any,
    ) -> Iterator[verification_pb2.SumStoreResponse]:
        self.sums.append(request)
        if self.sum_failures:
            context.abort_with_status(rpc_status.to_status(to_status(self.sum_failures.pop(0))))
        moment = types_pb2.Moment(query_id="scores", batch_id=6)
        stamp = types_pb2.ReplicaStamp(partition=request.partition, position=120, moment=moment)
        bounds = self.logged_bounds if request.of_log else self.bounds
        if bounds is not None and request.HasField("bounds"):
            bounds |= SumBounds.from_proto(request.bounds)
        yield verification_pb2.SumStoreResponse(stamp=stamp, bounds=None if bounds is None else bounds.to_proto())
        sums = StoreSums.empty(request.buckets)
        copy = self.logged if request.of_log else self.stored
        listed = verification_pb2.SummedEntries()
        for key, stored in sorted(copy.items()):
            if sums.add(key, digest_of(key, stored)) in request.listed:
                entry = SummedEntry.of(key, stored)
                listed.entries.add(key=key, digest=entry.digest, timestamp_ms=entry.timestamp_ms)
        yield verification_pb2.SumStoreResponse(listed=listed)
        size = sum(len(key) + len(stored) for key, stored in copy.items())
        yield verification_pb2.SumStoreResponse(
            sums=verification_pb2.StoreSums(counts=sums.counts, sums=sums.packed(), entries=len(copy), bytes=size)
        )

    def RestoreReplica(  # noqa: N802 - the service's name
        self, request: verification_pb2.RestoreReplicaRequest, _context: Any
    ) -> verification_pb2.RestoreReplicaResponse:
        self.restored.append(request)
        self.stored = dict(self.logged)
        return verification_pb2.RestoreReplicaResponse(task=f"0_{request.partition}")


class RecordedFleet:
    """The router and the nodes, all in this process."""

    def __init__(self, router: FakeRouter, nodes: Mapping[str, RecordedNode], ports: Mapping[str, int]) -> None:
        self.router, self.nodes, self._ports = router, nodes, ports
        self.fleet = fleet_service_pb2.GetFleetResponse()
        self.fleet.CopyFrom(FLEET)
        for node in self.fleet.nodes:
            node.host.host, node.host.port = "127.0.0.1", ports[node.host.instance_id]
        router.fleet, router.partitions = self.fleet, PARTITIONS

    def as_recorded(self, text: str) -> str:
        """Return a text with the addresses of the recording."""
        text = text.replace(self.router.target, "127.0.0.1:7100")
        for node in FLEET.nodes:
            port = self._ports[node.host.instance_id]
            text = text.replace(f"127.0.0.1:{port}", f"{node.host.host}:{node.host.port}")
            text = re.sub(rf"\b{port}\b", str(node.host.port), text)
        return text


@contextmanager
def node_server(node: RecordedNode) -> Iterator[int]:
    """Serve a node's calls; yield the port."""
    server = grpc.server(ThreadPoolExecutor(4))
    node_service_pb2_grpc.add_NodeServiceServicer_to_server(node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


@contextmanager
def recorded_fleet() -> Iterator[RecordedFleet]:
    """Run the router and the nodes."""
    with ExitStack() as stack:
        router = stack.enter_context(fake_router())
        nodes = {name: RecordedNode(said) for name, said in NODES.items()}
        ports = {name: stack.enter_context(node_server(node)) for name, node in nodes.items()}
        yield RecordedFleet(router, nodes, ports)
