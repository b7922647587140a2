"""A fleet that only says how it does, in the states in which somebody looks at the page at night."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from google.protobuf import text_format
from prometheus_client import generate_latest

from router.telemetry.metrics import RouterMetrics
from statehouse.contract.topology import Role
from statehouse.v1 import fleet_service_pb2, node_service_pb2, types_pb2
from tests.support.fake_router import BOARDS, fake_router
from tests.support.http_server import served
from tests.support.recorded_fleet import RecordedNode, node_server

TIMES: Final = "response-times-by-country"
"""A store, and the query that feeds it."""
FAILURE: Final = "ZeroDivisionError at topology.py:19, record page-views/3/812004"
_STORES: Final[Mapping[str, int]] = {"boards": 4, TIMES: 6}
_VALUES: Final[Mapping[str, Any]] = {
    "alice": {"player": "Alice", "scores": [{"game": "Chess", "score": 1_650.5}, {"game": "Go", "score": 987.0}]},
    "bob": {"player": "Bob", "scores": []},
    "a-key-of-many-words-that-somebody-made-by-joining-them": "text",
}
_NODES: Final = ("node-a", "node-b", "node-c")
_SILENT_MS: Final = 500_000


class Night(StrEnum):
    """How a fleet does."""

    WELL = "all well"
    NODE_KILLED = "a node killed"
    SPARK_DEAD = "the processor killed"
    CRASH_LOOP = "a query in a crash loop"


@dataclass(frozen=True)
class ToldFleet:
    """The addresses of its router and of the router's metrics, host:port."""

    router: str
    metrics: str


@contextmanager
def told_fleet(night: Night) -> Iterator[ToldFleet]:
    """Run a router, its metrics, and three nodes; of these, node-c is dead if a node is killed."""
    with ExitStack() as held:
        router = held.enter_context(fake_router())
        ports = {}
        for name in _NODES:
            node = RecordedNode(_said(name, night))
            node.before_answer = partial(_have_lookups, node.said)
            with ExitStack() as alive:
                ports[name] = alive.enter_context(node_server(node))
                if not (night is Night.NODE_KILLED and name == "node-c"):
                    held.push(alive.pop_all())
        router.fleet, router.values = _fleet(night, ports), dict(_VALUES)
        url = held.enter_context(served(_metrics_handler(night)))
        yield ToldFleet(router.target, url.removeprefix("http://"))


def _fleet(night: Night, ports: Mapping[str, int]) -> fleet_service_pb2.GetFleetResponse:
    epoch = 8 if night is Night.NODE_KILLED else 7
    response = fleet_service_pb2.GetFleetResponse(
        application_id="shop",
        epoch=epoch,
        reason="node-c is gone" if night is Night.NODE_KILLED else "node-c joined",
        served_by=fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY,
        queries=[_query("boards", night), _query(TIMES, night)],
        controller=fleet_service_pb2.ControllerInfo(
            host="driver-1:42", record_age_ms=_SILENT_MS if night is Night.SPARK_DEAD else 300
        ),
    )
    for number, (name, partitions) in enumerate(_STORES.items()):
        store = response.stores.add()
        store.CopyFrom(BOARDS)
        store.name, store.changelog_topic = name, f"shop-{name}-changelog"
        store.partition_count, store.sub_topology = partitions, number
        for partition in range(partitions):
            active, standby = _holders(number, partition, night)
            task = response.tasks.add(
                task=f"{number}_{partition}", active=active, standbys=[standby], reason=response.reason
            )
            task.replicas.extend(
                fleet_service_pb2.ReplicaReport(instance_id=holder, role=role, state="running", position=12_345, lag=0)
                for holder, role in (
                    (active, types_pb2.REPLICA_ROLE_ACTIVE),
                    (standby, types_pb2.REPLICA_ROLE_STANDBY),
                )
                if not (night is Night.NODE_KILLED and holder == "node-c")
            )
    for name, port in ports.items():
        is_dead = night is Night.NODE_KILLED and name == "node-c"
        node = response.nodes.add(
            incarnation="1",
            rack=f"rack-{name[-1]}",
            state="SILENT" if is_dead else "RUNNING",
            version="0.4.0",
            epoch=7 if is_dead else epoch,
            heartbeat_age_ms=_SILENT_MS if is_dead else 300,
            reachable=not is_dead,
            capacity=1,
        )
        node.host.CopyFrom(types_pb2.Host(instance_id=name, host="127.0.0.1", port=port))
    return response


def _holders(sub_topology: int, partition: int, night: Night) -> tuple[str, str]:
    """Return a task's active and standby. One task of the node that is killed has not been moved yet."""
    active, standby = _NODES[partition % 3], _NODES[(partition + 1) % 3]
    is_moved = night is Night.NODE_KILLED and active == "node-c" and (sub_topology, partition) != (1, 5)
    return (standby, active) if is_moved else (active, standby)


def _query(store: str, night: Night) -> fleet_service_pb2.QueryInfo:
    query = text_format.Parse(
        """
        record_age_ms: 700 heard_age_ms: 700 batch_id: 812 batch_age_ms: 900 input_backlog: 4980 state: "RUNNING"
        status {
          input_rows_per_second: 999.6 backlog: 5000 backlog_eta_ms: 50400 batch_ms: 640 state_rows: 1234
          state_bytes: 65536 watermark_ms: 1700000000000
        }
        """,
        fleet_service_pb2.QueryInfo(name=store, stores=[store]),
    )
    if night is Night.SPARK_DEAD:
        query.state, query.heard_age_ms, query.record_age_ms, query.batch_age_ms = "SILENT", *(_SILENT_MS,) * 3
        query.status.ClearField("input_rows_per_second")  # as the router does
        query.status.ClearField("backlog_eta_ms")
    elif night is Night.CRASH_LOOP and store == TIMES:
        query.state, query.batch_age_ms = "RESTARTING", 190_000
        query.failure.restarts, query.failure.reason = 5, FAILURE
        query.status.ClearField("input_rows_per_second")
        query.status.ClearField("backlog_eta_ms")
    return query


def _said(name: str, night: Night) -> node_service_pb2.GetNodeResponse:
    """Return what a node says of itself."""
    response = node_service_pb2.GetNodeResponse(host=types_pb2.Host(instance_id=name), incarnation="1", state="RUNNING")
    for number, (store, partitions) in enumerate(_STORES.items()):
        for partition in range(partitions):
            holders = _holders(number, partition, night)
            if name not in holders:
                continue
            is_active = name == holders[0]
            task = response.tasks.add(
                task=f"{number}_{partition}",
                state="running",
                role=types_pb2.REPLICA_ROLE_ACTIVE if is_active else types_pb2.REPLICA_ROLE_STANDBY,
            )
            task.stores.add(
                store=store,
                partition=partition,
                position=12_345,
                end_offset=12_345,
                lag=0,
                staleness_ms=20,
                restored_from=0,
                lookups=0,
            )
    return response


def _have_lookups(said: node_service_pb2.GetNodeResponse) -> None:
    """Answer some lookups of each partition that a node is active for."""
    for task in said.tasks:
        if task.role == types_pb2.REPLICA_ROLE_ACTIVE:
            task.stores[0].lookups += 1 + task.stores[0].partition


def _metrics_handler(night: Night) -> Callable[..., BaseHTTPRequestHandler]:
    """Return a handler that answers with the metrics of a router which has had lookups since it was asked last."""
    metrics, lock = RouterMetrics(), threading.Lock()
    outcomes: Sequence[tuple[str, str]] = [("boards", "OK"), (TIMES, "OK")] * 40
    if night is Night.NODE_KILLED:
        outcomes = [*outcomes, *[(TIMES, "NO_REPLICA_AVAILABLE")] * 7]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with lock:
                for store, outcome in outcomes:
                    metrics.lookup(store, outcome, Role.ACTIVE if outcome == "OK" else None, 0.004)
                text = generate_latest(metrics.registry)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
            """Say nothing."""

    return Handler
