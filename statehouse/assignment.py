"""The assignment: an immutable snapshot of who holds what, and its form in the assignment topic.

A snapshot is published in one Kafka transaction: a record for each store and sub-topology that changed and, last, a
manifest that names every key with the epoch of its last write. A reader accepts a snapshot only when it has every
record that the manifest names. So it never sees half an epoch, although compaction removes old records and unchanged
ones are not rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from statehouse.control.v1 import assignment_pb2
from statehouse.errors import ContractError
from statehouse.partitioning import CONFORMANCE_VECTORS, verify_vectors
from statehouse.topology import MURMUR2, AnyTaskId, GlobalId, Role, StoreSpec, SubTopology, TaskId

MANIFEST_KEY = "epoch"
CONTROLLER_KEY: Final = b"controller"
"""The key of the acting controller's record. It is no part of an assignment."""


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """The instances that hold a task."""

    active: str | None = None
    standbys: tuple[str, ...] = ()
    warm_ups: tuple[str, ...] = ()
    reason: str = ""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Every holder, the active first."""
        return (*(() if self.active is None else (self.active,)), *self.standbys, *self.warm_ups)

    def role_of(self, instance_id: str) -> Role | None:
        """Return the node's role in this task; None if it does not hold the task."""
        if instance_id == self.active:
            return Role.ACTIVE
        if instance_id in self.standbys:
            return Role.STANDBY
        return Role.WARM_UP if instance_id in self.warm_ups else None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One epoch of the assignment, complete. Mappings are read-only."""

    epoch: int = 0
    reason: str = ""
    controller: str = ""
    stores: Mapping[str, StoreSpec] = field(default_factory=lambda: MappingProxyType({}))
    sub_topologies: Mapping[int, SubTopology] = field(default_factory=lambda: MappingProxyType({}))
    tasks: Mapping[TaskId, TaskAssignment] = field(default_factory=lambda: MappingProxyType({}))
    written_at: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Epoch of each record key's last write."""

    def tasks_of(self, instance_id: str) -> dict[TaskId, Role]:
        """Return the tasks a node holds, with its role in each."""
        return {
            task: role for task, holders in self.tasks.items() if (role := holders.role_of(instance_id)) is not None
        }

    def tasks_written_after(self, epoch: int) -> tuple[TaskId, ...]:
        """Return the tasks whose records are newer than an epoch: others have not changed since."""
        return tuple(task for task in self.tasks if self.written_at.get(_task_key(task.sub_topology), 0) > epoch)

    def stores_of(self, sub_topology: int) -> tuple[StoreSpec, ...]:
        """Return the stores of a sub-topology, by name."""
        return tuple(
            spec for _, spec in sorted(self.stores.items()) if not spec.is_global and spec.sub_topology == sub_topology
        )

    @property
    def global_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that every node holds, by name."""
        return tuple(spec for _, spec in sorted(self.stores.items()) if spec.is_global)

    def all_tasks_of(self, instance_id: str) -> dict[AnyTaskId, Role]:
        """Return a node's tasks and every global store, with its role in each."""
        tasks: dict[AnyTaskId, Role] = dict(self.tasks_of(instance_id).items())
        for spec in self.global_stores:
            tasks[GlobalId(spec.name)] = Role.GLOBAL
        return tasks

    def partitions_of(self, task: AnyTaskId) -> tuple[tuple[StoreSpec, int], ...]:
        """Return the store partitions in a task; for a global store, all partitions of its topic."""
        if isinstance(task, GlobalId):
            spec = self.stores[task.store]
            return tuple((spec, partition) for partition in range(spec.partition_count))
        return tuple((spec, task.partition) for spec in self.stores_of(task.sub_topology))


def encode(previous: Assignment, following: Assignment) -> tuple[Assignment, list[tuple[bytes, bytes | None]]]:
    """Return `following` with its `written_at`, and the records that lead from `previous` to it.

    Records are (key, value); a None value deletes the key. Write them in this order, in one transaction.
    """
    old, new = _records(previous), _records(following)
    written_at = {
        key: previous.written_at[key] if key in previous.written_at and old.get(key) == record else following.epoch
        for key, record in new.items()
    }
    changed: list[tuple[bytes, bytes | None]] = []
    for key, record in sorted(new.items()):
        if written_at[key] == following.epoch:
            wrapped = assignment_pb2.AssignmentRecord(epoch=following.epoch)
            wrapped.MergeFrom(record)
            changed.append((key.encode(), _bytes(wrapped)))
    changed += [(key.encode(), None) for key in sorted(old.keys() - new.keys())]
    manifest = assignment_pb2.Manifest(
        epoch=following.epoch, keys=written_at, reason=following.reason, controller=following.controller
    )
    record = assignment_pb2.AssignmentRecord(epoch=following.epoch, manifest=manifest)
    changed.append((MANIFEST_KEY.encode(), _bytes(record)))
    complete = Assignment(
        following.epoch,
        following.reason,
        following.controller,
        following.stores,
        following.sub_topologies,
        following.tasks,
        MappingProxyType(written_at),
    )
    return complete, changed


def _task_key(sub_topology: int) -> str:
    return f"task/{sub_topology}"


def _bytes(record: assignment_pb2.AssignmentRecord) -> bytes:
    return record.SerializeToString(deterministic=True)


def _records(assignment: Assignment) -> dict[str, assignment_pb2.AssignmentRecord]:
    """Return the record of each key, without the epoch."""
    records = {}
    for spec in assignment.stores.values():
        vectors = [assignment_pb2.ConformanceVector(key=key, hash=value) for key, value in CONFORMANCE_VECTORS]
        store = assignment_pb2.StoreSpec(
            name=spec.name,
            kind=spec.kind,
            key_serde=spec.key_serde,
            value_serde=spec.value_serde,
            changelog_topic=spec.changelog_topic,
            partition_count=spec.partition_count,
            sub_topology=spec.sub_topology,
            partitioner=spec.partitioner,
            conformance_vectors=vectors,
            in_memory=spec.in_memory,
            retention_ms=spec.retention_ms,
            window_size_ms=spec.window_size_ms,
            retain_duplicates=spec.retain_duplicates,
            ephemeral=spec.ephemeral,
            layout=spec.layout,
        )
        setattr(store, "global", spec.is_global)  # `global` is a Python keyword
        records[f"store/{spec.name}"] = assignment_pb2.AssignmentRecord(store=store)
    for sub in assignment.sub_topologies.values():
        holders = [assignment.tasks.get(task, TaskAssignment()) for task in sub.tasks]
        tasks = [
            assignment_pb2.Task(
                active=holder.active or "", standbys=holder.standbys, warm_ups=holder.warm_ups, reason=holder.reason
            )
            for holder in holders
        ]
        message = assignment_pb2.SubTopology(
            number=sub.number, query=sub.query, partition_count=sub.partition_count, tasks=tasks
        )
        records[_task_key(sub.number)] = assignment_pb2.AssignmentRecord(sub_topology=message)
    return records


class AssignmentReader:
    """Turns the assignment topic's records, in order, into snapshots.

    Sans-I/O: feed it records, take the snapshots it returns. Epochs never go back. An unreadable record is reported to
    `on_unreadable(key, error)` and skipped.
    """

    def __init__(self, on_unreadable: Callable[[str, Exception], None] = lambda _key, _error: None) -> None:
        """Start with no snapshot."""
        self._records: dict[str, assignment_pb2.AssignmentRecord] = {}
        self._on_unreadable = on_unreadable
        self.current: Assignment | None = None

    def feed(self, key: bytes | None, value: bytes | None) -> Assignment | None:
        """Take a record; return the snapshot it completes, if any."""
        name = (key or b"").decode(errors="replace")
        if value is None:
            self._records.pop(name, None)
            return None
        try:
            record = assignment_pb2.AssignmentRecord.FromString(value)
        except DecodeError as error:
            self._on_unreadable(name, error)
            return None
        kind = record.WhichOneof("record")
        if kind != "manifest":
            if kind != "controller":  # that one is no part of an assignment
                self._records[name] = record
            return None
        manifest = record.manifest
        if self.current is not None and manifest.epoch <= self.current.epoch:
            return None
        if any(key not in self._records or self._records[key].epoch != epoch for key, epoch in manifest.keys.items()):
            return None
        self.current = self._snapshot(manifest)
        return self.current

    def not_understood(self) -> str:
        """Return the key of a record of the snapshot that this version would write otherwise; empty if there is none.

        Another version wrote it. Who plans on from such a snapshot would lose what it can't read.
        """
        if self.current is None:
            return ""
        rebuilt = _records(self.current)
        for key, epoch in sorted(self.current.written_at.items()):
            ours = rebuilt.get(key)
            if ours is not None:
                ours.epoch = epoch
            if ours is None or _bytes(ours) != _bytes(self._records.get(key, assignment_pb2.AssignmentRecord())):
                return key
        return ""

    def _snapshot(self, manifest: assignment_pb2.Manifest) -> Assignment:
        stores: dict[str, StoreSpec] = {}
        sub_topologies: dict[int, SubTopology] = {}
        tasks: dict[TaskId, TaskAssignment] = {}
        for key in sorted(manifest.keys):  # a protobuf map's order differs between processes
            record = self._records[key]
            kind = record.WhichOneof("record")
            try:
                if kind == "store":
                    stores[record.store.name] = _store_spec(record.store)
                elif kind == "sub_topology":
                    sub = record.sub_topology
                    sub_topologies[sub.number] = SubTopology(sub.number, sub.query, sub.partition_count)
                    for partition, task in enumerate(sub.tasks):
                        tasks[TaskId(sub.number, partition)] = TaskAssignment(
                            task.active or None, tuple(task.standbys), tuple(task.warm_ups), task.reason
                        )
            except ContractError as error:
                self._on_unreadable(key, error)
        return Assignment(
            manifest.epoch,
            manifest.reason,
            manifest.controller,
            MappingProxyType(stores),
            MappingProxyType(sub_topologies),
            MappingProxyType(tasks),
            MappingProxyType(dict(manifest.keys)),
        )


def _store_spec(store: assignment_pb2.StoreSpec) -> StoreSpec:
    """Read a store's record; refuse another partitioner: lookups would go to wrong partitions."""
    if store.partitioner != MURMUR2:
        raise ContractError(f"store {store.name}: partitioner {store.partitioner!r} is not known to this version")
    try:
        verify_vectors([(vector.key, vector.hash) for vector in store.conformance_vectors])
    except ValueError as error:
        raise ContractError(f"store {store.name}: {error}") from error
    return StoreSpec(
        store.name,
        store.changelog_topic,
        store.partition_count,
        store.sub_topology,
        store.kind,
        store.key_serde,
        store.value_serde,
        store.partitioner,
        store.in_memory,
        store.retention_ms,
        store.window_size_ms,
        store.retain_duplicates,
        getattr(store, "global"),
        store.ephemeral,
        store.layout,
    )
