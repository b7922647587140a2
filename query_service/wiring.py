"""Wiring: makes the parts of a node from its settings, and connects them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from query_service.control_topics import ControlTopics
from query_service.dataplane.orders import DataPlane
from query_service.reads.admission import Admission
from query_service.reads.first_batch import FirstBatches
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import ReplicaMoments
from query_service.reads.observed import ReadObserver
from query_service.reads.open_scans import OpenScans
from query_service.reads.position_waits import PositionWaits
from query_service.reads.scans import ScanHandler
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import TaskReplica, monotonic_and_wall_ms
from query_service.service import SERVICES, NodeServicer, PeerServicer, QueryServicer, register
from query_service.serving.serving import Serving
from query_service.serving.snapshots import SnapshotCompiler
from query_service.states.ownership import NodeOwnership
from query_service.stores.resources import StoreResources
from query_service.telemetry.listeners import Listener, Listeners
from query_service.telemetry.log_listener import LogListener
from query_service.telemetry.metrics import NodeMetrics
from query_service.telemetry.restore_display import progress_listener
from query_service.watches.log_reader import LogReader
from query_service.watches.watch_handler import WatchHandler
from statehouse.contract.assignment import AssignmentReader
from statehouse.contract.topology import AnyTaskId
from statehouse.contract.version_names import version_in, wire_version
from statehouse.kafka.partitioner import partitioner
from statehouse.link.proxy import proxy_for
from statehouse.observability.denials import counted_gate
from statehouse.observability.lookup_log import LookupLog
from statehouse.observability.tracing import Tracing
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.rpc.deadline import RequestTimes
from statehouse.rpc.server import RpcServer
from statehouse.security.draining import LocalGate, is_drain_local
from statehouse.security.settings_gate import gates_named
from statehouse.settings import NodeSettings
from statehouse.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class ReadHandlers:
    """The parts that answer requests."""

    admission: Admission
    open_scans: OpenScans
    lookups: LookupHandler
    scans: ScanHandler
    watches: WatchHandler
    waits: PositionWaits
    fetches: SerdeFetches
    observer: ReadObserver


def new_listeners(metrics: NodeMetrics, more: Sequence[Listener]) -> Listeners:
    """Return the built-in listeners, `more`, and the listeners of installed packages."""
    listeners = Listeners()
    listeners.add("log", LogListener())
    listeners.add("metrics", metrics)
    listeners.add("progress", progress_listener())
    for listener in more:
        listeners.add(type(listener).__name__, listener)
    listeners.add_installed()
    return listeners


def new_ownership(settings: NodeSettings, skipped: UnreadableRecords) -> NodeOwnership:
    """Return the ownership for this run of the node. Without an instance id, make up a name."""
    return NodeOwnership(
        settings.instance_id or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        secrets.token_hex(8),
        monotonic_and_wall_ms()[1],
        session_timeout_s=settings.session_timeout_ms / 1000,
        dynamic=not settings.instance_id,
        reader=AssignmentReader(partial(skipped.note, "assignment")),
    )


def new_resources(settings: NodeSettings) -> StoreResources:
    """Return the resources that all stores share."""
    return StoreResources(
        block_cache_bytes=settings.block_cache_bytes,
        write_buffer_bytes=settings.write_buffer_bytes,
        memory_store_max_bytes=settings.memory_store_max_bytes,
    )


def new_reads(
    settings: NodeSettings,
    client_id: str,
    host: types_pb2.Host,
    replicas: Mapping[AnyTaskId, TaskReplica],
    control: ControlTopics,
    metrics: NodeMetrics,
    tracing: Tracing | None,
) -> ReadHandlers:
    """Return the parts that answer requests for these replicas, by what the control topics say."""
    lookup_log = LookupLog(settings.lookup_log_sample, has_keys=settings.lookup_log_keys)
    observer = ReadObserver(host.instance_id, lookup_log, tracing, control.batch_spans)
    first_batches = FirstBatches(control.reports.proven, lambda: control.moments.read_at_s is not None)
    admission = Admission(
        host,
        replicas,
        control.is_confirmed,
        control.reports.latest,
        partitioner(),
        first_batches,
        ReplicaMoments(control.moments),
        wire_version(version_in(settings.application_id)),
    )
    open_scans = OpenScans(max_open=settings.max_open_scans, timeout_s=settings.scan_timeout_ms / 1000)
    lookups = LookupHandler(
        admission,
        open_scans,
        metrics,
        max_batch_entries=settings.max_batch_entries,
        max_message_bytes=settings.max_message_bytes,
        on_entry_failed=observer.entry_failed,
    )
    fetches = SerdeFetches(timeout_s=settings.serde_options.timeout_s)
    log_reader = LogReader(settings.brokers, client_id)
    return ReadHandlers(
        admission,
        open_scans,
        lookups,
        ScanHandler(admission, open_scans, max_message_bytes=settings.max_message_bytes),
        WatchHandler(admission, open_scans, log_reader, fetches, max_watches=settings.max_watches),
        PositionWaits(
            RequestTimes(settings.position_wait_timeout_ms / 1000, settings.max_timeout_ms / 1000),
            max_waits=settings.max_position_waits,
        ),
        fetches,
        observer,
    )


def new_serving(
    settings: NodeSettings,
    plane: DataPlane | None,
    admission: Admission,
    control: ControlTopics,
    metrics: NodeMetrics,
) -> Serving | None:
    """Return what has the data plane answer on its own; None if each lookup is Python's.

    So it is where a share of the lookups is logged.
    """
    if plane is None or settings.lookup_log_sample:
        return None
    compiler = SnapshotCompiler(
        admission, max_batch_entries=settings.max_batch_entries, needs_permits=bool(gates_named(settings))
    )
    return Serving(plane, compiler, control.confirmed_for_s, control.reports.latest, metrics, control.moments)


def new_server(
    settings: NodeSettings,
    reads: ReadHandlers,
    node: NodeServicer,
    peers: PeerServicer,
    metrics: NodeMetrics,
    on_defect: Callable[[Exception], None],
    *,
    is_traced: bool,
) -> RpcServer:
    """Return the server of the node's services. Its port is bound, but it accepts no calls yet."""
    servicer = QueryServicer(
        reads.lookups, reads.scans, reads.watches, reads.waits, reads.fetches, metrics, reads.observer
    )
    bind = f"{settings.bind_host}:{settings.node_port}"
    return RpcServer(
        bind,
        SERVICES,
        lambda server: register(server, servicer, node, peers),
        settings=settings,
        proxy=proxy_for(settings, bind, on_defect, is_traced=is_traced, server_name=settings.tls_node_name),
        proxied=servicer.proxied,
        max_batch_entries=settings.max_batch_entries,
        lasting_calls=settings.max_watches + settings.max_position_waits + settings.max_open_scans,
        gate=counted_gate(settings, metrics.security),
        local_gate=LocalGate(metrics.security.denied) if is_drain_local(settings) else None,
    )
