"""Compiles what a node has decided into a snapshot for its data plane."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from query_service.dataplane.holding import DataPlaneStore, kind_of
from query_service.reads.admission import HEADS_MAX, Admission
from query_service.reads.fleet_view import ServedStore
from query_service.replicas.replica import StoreReplica
from query_service.states.ownership import claimed_role
from query_service.telemetry.metrics import READ_BUCKETS_S
from statehouse.contract.consistency import ANSWERS_AS_ACTIVE
from statehouse.control.v1 import serving_pb2
from statehouse.errors import LookupFailure
from statehouse.link.forms import key_form, value_form
from statehouse.security.concealed import concealed_message
from statehouse.v1 import types_pb2

_READ_BOUNDS_US: Final = tuple(round(bound * 1e6) for bound in READ_BUCKETS_S)


@lru_cache(HEADS_MAX)
def _concealed(head: bytes) -> bytes:
    return concealed_message(types_pb2.ReplicaStamp.FromString(head)).SerializeToString()


class SnapshotCompiler:
    """Compiles snapshots of what the admission of a node lets answer. Lives on the event loop."""

    def __init__(self, admission: Admission, *, max_batch_entries: int, needs_permits: bool = False) -> None:
        """`needs_permits`: callers are judged, and answered only with a permit."""
        self._admission, self._max_batch_entries, self._needs_permits = admission, max_batch_entries, needs_permits
        self.latest = serving_pb2.ServingSnapshot()
        """The last snapshot; the first has the number 1."""
        self.replicas: Mapping[int, StoreReplica] = MappingProxyType({})
        """The replicas that it names, by their numbers."""

    def changed(self) -> serving_pb2.ServingSnapshot | None:
        """Return the snapshot if it differs from the last one."""
        snapshot = serving_pb2.ServingSnapshot(
            number=self.latest.number,
            max_batch_entries=self._max_batch_entries,
            read_bounds_us=_READ_BOUNDS_US,
            needs_permits=self._needs_permits,
            version=self._admission.version,
        )
        replicas: dict[int, StoreReplica] = {}
        view = self._admission.view
        if view.assignment is not None:
            snapshot.epoch = view.assignment.epoch
            for name, served in view.stores.items():
                # One partition can't say everything of a store that is not placed as its keys are hashed.
                if name not in view.placements and not self._admission.is_scattered(served):
                    self._add(snapshot, served, replicas)
        if snapshot == self.latest:
            return None
        snapshot.number += 1
        self.latest, self.replicas = snapshot, replicas
        return snapshot

    def _add(
        self, snapshot: serving_pb2.ServingSnapshot, served: ServedStore, replicas: dict[int, StoreReplica]
    ) -> None:
        store = serving_pb2.ServingStore(
            name=served.spec.name,
            key_form=key_form(served.key_serde),
            value_form=value_form(served.value_serde),
            partition_count=served.spec.partition_count,
            is_global=served.spec.is_global,
            kind=kind_of(served.spec),
            window_size_ms=served.spec.window_size_ms,
        )
        for partition in range(served.spec.partition_count):
            try:
                task, replica = self._admission.standing(served, partition)
            except LookupFailure:
                continue  # who asks for it learns from Python why
            if not isinstance(replica.store, DataPlaneStore):
                continue
            claimed = claimed_role(task.role, confirmed=True, epoch=snapshot.epoch, requested_epoch=snapshot.epoch)
            number = replica.store.engine.store
            replicas[number] = replica
            store.replicas.add(
                partition=partition,
                store=number,
                is_active=claimed in ANSWERS_AS_ACTIVE,
                head=(head := self._admission.head(replica, snapshot.epoch, claimed)),
                concealed_head=_concealed(head),
            )
        if store.replicas:
            snapshot.stores.append(store)
