"""The assignment: an immutable snapshot of who holds what, and its form in the assignment topic.

A snapshot is published in one Kafka transaction: a record for each store and sub-topology that changed and, last, a
manifest that names every key with the epoch of its last write. A reader accepts a snapshot only when it has every
record that the manifest names. So it never sees half an epoch, although compaction removes old records and unchanged
ones are not rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from statehouse.contract.epochs import EPOCH_MAX, is_newer
from statehouse.contract.formats import ASSIGNMENT, NewerFormatError
from statehouse.contract.partitioning import CONFORMANCE_VECTORS, verify_vectors
from statehouse.contract.topology import (
    MURMUR2,
    SESSION,
    WINDOW,
    AnyTaskId,
    GlobalId,
    Role,
    StoreSpec,
    SubTopology,
    TaskId,
    checked_name,
)
from statehouse.contract.versions import VERSIONS_KEY
from statehouse.control.v1 import assignment_pb2
from statehouse.errors import ContractError
from statehouse.errors.checked import (
    HOLDERS_MAX,
    LIST_MAX,
    PARTITIONS_MAX,
    PARTITIONS_OF_ALL_MAX,
    STORES_MAX,
    SUB_TOPOLOGIES_MAX,
    checked_count,
    checked_id,
    checked_list,
    checked_record,
    checked_size,
    checked_text,
    checked_topic,
)
from statehouse.keys.columns import COLUMNS_MAX, KeyColumn

MANIFEST_KEY = "epoch"
CONTROLLER_KEY: Final = b"controller"
"""The key of the acting controller's record. It is no part of an assignment."""

_INT64_MAX: Final = 2**63 - 1
# An epoch changes a record, or removes one. Nobody removes so many in a row.
_EPOCHS_WITHOUT_CHANGE: Final = 2**20
_RECORD_MAX: Final = 64 * 2**20
"""As the controller's client takes: a sub-topology's thousands of tasks are one record."""
_VECTORS_MAX: Final = 1_000
_OF_BOTH: Final = tuple(each.name for each in fields(StoreSpec) if each.name not in {"is_global", "key_columns"})
"""The fields that a store's record has as the store has them."""
_KEYS_MAX: Final = 2 * LIST_MAX
_KEY_MAX: Final = 300
"""Characters of a key; none of ours has so many."""


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
        return tuple(
            task for task in self.tasks if is_newer(self.written_at.get(_task_key(task.sub_topology), 0), epoch)
        )

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
    if not _may_have_written(following.epoch, written_at.values()):
        # The count began anew, or somebody else's manifest had led it far away: all records get the new epoch.
        written_at = dict.fromkeys(new, following.epoch)
    changed: list[tuple[bytes, bytes | None]] = []
    for key, record in sorted(new.items()):
        if written_at[key] == following.epoch:
            wrapped = assignment_pb2.AssignmentRecord(epoch=following.epoch, format_version=ASSIGNMENT.written)
            wrapped.MergeFrom(record)
            changed.append((key.encode(), _bytes(wrapped)))
    changed += [(key.encode(), None) for key in sorted(old.keys() - new.keys())]
    manifest = assignment_pb2.Manifest(
        epoch=following.epoch, keys=written_at, reason=following.reason, controller=following.controller
    )
    record = assignment_pb2.AssignmentRecord(
        epoch=following.epoch, manifest=manifest, format_version=ASSIGNMENT.written
    )
    changed.append((MANIFEST_KEY.encode(), _bytes(record)))
    return replace(following, written_at=MappingProxyType(written_at)), changed


def _may_have_written(epoch: int, written_at: Collection[int]) -> bool:
    """Whether an epoch's manifest may name records that were last written at these epochs."""
    newest = max(written_at, default=epoch)
    return newest <= epoch <= newest + _EPOCHS_WITHOUT_CHANGE


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
            conformance_vectors=vectors,
            key_columns=[assignment_pb2.KeyColumn(name=each.name, type=each.type) for each in spec.key_columns],
            **{name: getattr(spec, name) for name in _OF_BOTH},
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

    Sans-I/O: feed it records, take the snapshots it returns. Epochs never go back within one log. A record that can't
    be read, or can't be true, is reported to `on_unreadable(key, error)` and skipped: the one before it stays.
    """

    def __init__(self, on_unreadable: Callable[[str, Exception], None] = lambda _key, _error: None) -> None:
        self._records: dict[str, assignment_pb2.AssignmentRecord] = {}
        self._on_unreadable = on_unreadable
        self.epoch = 0
        """The epoch of the log's newest snapshot, 0 if it has none."""
        self._before_end: dict[str, assignment_pb2.AssignmentRecord | None] | None = None
        self._named: frozenset[str] = frozenset()
        """The keys that the newest manifest names, whether or not it is whole."""
        self._spoilt: set[str] = set()
        """Keys whose last record in the log is no good, although an earlier one may still count here."""
        self._newer: set[str] = set()
        """Those of them whose record has a format that only newer versions read."""
        self.current: Assignment | None = None

    @property
    def is_current_of_log(self) -> bool:
        """Whether the newest snapshot is from the log as it is now: not after it was begun anew, until it has one."""
        return self.epoch > 0

    def begin(self) -> None:
        """Take that the log is read from its beginning: for the first time, or because it was recreated or truncated.

        The newest snapshot stays until the log has one. That one may have any epoch: another log counts its own. A log
        that was not compacted holds old snapshots, too. Nothing is complete before `end_reached`, so that nobody acts
        on one of them.
        """
        self._records.clear()
        self._spoilt.clear()
        self._newer.clear()
        self._named = frozenset()
        self.epoch, self._before_end = 0, {}

    def end_reached(self) -> Assignment | None:
        """Take that the log has been read to its end; return the snapshot that this completes, if any."""
        if self._before_end is None:
            return None
        records, self._before_end = self._before_end, None
        for key, record in records.items():
            self._take(key, record)
        return self.current if self.is_current_of_log else None

    def feed(self, key: bytes | None, value: bytes | None) -> Assignment | None:
        """Take a record; return the snapshot it completes, if any."""
        if key == VERSIONS_KEY:  # no part of an assignment, and no controller's
            return None
        name = (key or b"").decode(errors="replace")
        record = None
        try:
            self._check_key(name)
            if value is not None:
                record = _checked_record(name, value)
        except ContractError as error:
            self.refuse(name, error)
            return None
        self._newer.discard(name)
        if self._before_end is not None:
            self._before_end.pop(name, None)  # so that they stay in the order of the log, as in a compacted one
            self._before_end[name] = record
            return None
        return self._take(name, record)

    def _check_key(self, name: str) -> None:
        """Refuse more keys than an assignment can have: they would be kept for ever."""
        if len(name) > _KEY_MAX:
            raise ContractError(f"its key has {len(name)} characters, and {_KEY_MAX} are the most")
        kept = self._records if self._before_end is None else self._before_end
        if name not in kept and len(kept) >= _KEYS_MAX and name != MANIFEST_KEY:
            raise ContractError(f"the topic has more than {_KEYS_MAX} keys")

    def refuse(self, name: str, error: ContractError) -> None:
        """Take that the last record of a key is skipped, and why."""
        if len(name) <= _KEY_MAX and len(self._spoilt) < _KEYS_MAX:
            self._spoilt.add(name)
            if isinstance(error, NewerFormatError):
                self._newer.add(name)
        self._on_unreadable(name, error)

    def _take(self, name: str, record: assignment_pb2.AssignmentRecord | None) -> Assignment | None:
        """Take a record that was checked, None for a tombstone; return the snapshot it completes, if any."""
        kind = None if record is None else record.WhichOneof("record")
        self._spoilt.discard(name)
        if name == MANIFEST_KEY:
            complete = self._completed(record.manifest) if record is not None and kind == "manifest" else None
            if complete is None:
                self._spoilt.add(name)
            return complete
        if record is None:
            self._records.pop(name, None)
        elif kind != "controller":  # that one is no part of an assignment
            self._records[name] = record
        return None

    def _completed(self, manifest: assignment_pb2.Manifest) -> Assignment | None:
        """Return the manifest's snapshot; None if it is not newer, or not whole."""
        self._named = frozenset(manifest.keys)
        if not is_newer(manifest.epoch, self.epoch):
            return None
        if any(key not in self._records or self._records[key].epoch != epoch for key, epoch in manifest.keys.items()):
            return None
        if fault := _fault_of_all(self._records[key] for key in manifest.keys):
            self._on_unreadable(MANIFEST_KEY, ContractError(fault))
            return None
        self.current, self.epoch = self._snapshot(manifest), manifest.epoch
        return self.current

    def of_newer_format(self) -> str:
        """Return the key of a record that is skipped as its format is a newer version's; empty if there is none."""
        return min(self._newer & {*self._named, MANIFEST_KEY}, default="")

    def not_understood(self) -> str:
        """Return the key of a record that this version would write otherwise, or can't read; empty if there is none.

        Another version wrote it. A planner that goes on from such a snapshot would lose what it can't read.
        """
        if newer := self.of_newer_format():
            return newer
        return "" if self.current is None or not self.is_current_of_log else self._other_record(self.current)

    def unlike(self, assignment: Assignment) -> str:
        """Return the key of a record that the log doesn't have as this assignment's; empty if there is none."""
        if not assignment.written_at:
            return ""
        spoilt = self._spoilt & {*assignment.written_at, MANIFEST_KEY}
        if spoilt:
            return min(spoilt)
        return self._other_record(assignment) or ("" if self.epoch == assignment.epoch else MANIFEST_KEY)

    def _other_record(self, assignment: Assignment) -> str:
        rebuilt = _records(assignment)
        for key, epoch in sorted(assignment.written_at.items()):
            ours, theirs = rebuilt.get(key), self._records.get(key, assignment_pb2.AssignmentRecord())
            if ours is not None:
                # An earlier format, which is read, is as good.
                ours.epoch, ours.format_version = epoch, theirs.format_version
            if ours is None or _bytes(ours) != _bytes(theirs):
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
        for name, fault in sorted(_sharing_topics(stores, manifest.keys).items()):
            self._on_unreadable(f"store/{name}", ContractError(fault))
            del stores[name]
        for spec in list(stores.values()):
            holders = None if spec.is_global else sub_topologies.get(spec.sub_topology)
            if holders is not None and holders.partition_count != spec.partition_count:
                misfit = f"its sub-topology {spec.sub_topology} has not {spec.partition_count} partitions"
                self._on_unreadable(f"store/{spec.name}", ContractError(misfit))
                del stores[spec.name]
        return Assignment(
            manifest.epoch,
            manifest.reason,
            manifest.controller,
            MappingProxyType(stores),
            MappingProxyType(sub_topologies),
            MappingProxyType(tasks),
            MappingProxyType(dict(manifest.keys)),
        )


def read_controller_record(value: bytes) -> assignment_pb2.AssignmentRecord:
    """Read the value of the record under CONTROLLER_KEY.

    Raises:
        ContractError: it is no such record, or a field has a value that can't be true.

    """
    record = _parsed(value)
    if record.WhichOneof("record") != "controller":
        raise ContractError("it is not a controller's record")
    checked_id("controller", record.controller.controller)
    checked_text("host", record.controller.host)
    checked_count("heartbeat", record.controller.heartbeat)
    return record


def _parsed(value: bytes) -> assignment_pb2.AssignmentRecord:
    try:
        record = assignment_pb2.AssignmentRecord.FromString(checked_record(value, _RECORD_MAX))
    except DecodeError as error:
        raise ContractError(f"it is no record of an assignment: {error}") from error
    ASSIGNMENT.check(record.format_version)
    return record


def _checked_record(key: str, value: bytes) -> assignment_pb2.AssignmentRecord:
    """Read a record, and check that it is what its key says, and that its values can be true.

    Raises:
        ContractError: it isn't, or they can't.

    """
    record = _parsed(value)
    checked_count("epoch", record.epoch)
    kind = record.WhichOneof("record")
    if kind == "store":
        _check_store(record.store)
        expected = f"store/{record.store.name}"
    elif kind == "sub_topology":
        _check_sub_topology(record.sub_topology)
        expected = _task_key(record.sub_topology.number)
    elif kind == "manifest":
        _check_manifest(record.manifest)
        expected = MANIFEST_KEY
    else:  # the controller's own, which `read_controller_record` reads, or one of a newer version
        return record
    if key != expected:
        raise ContractError(f"it belongs under the key {expected}")
    return record


def _fault_of_all(records: Iterator[assignment_pb2.AssignmentRecord]) -> str:
    """Return why records that can each be true can't be together; empty if they can."""
    stores = of_stores = of_sub_topologies = 0
    for record in records:
        stores += record.HasField("store")
        of_stores += record.store.partition_count
        of_sub_topologies += record.sub_topology.partition_count
    if stores > STORES_MAX:
        return f"it has {stores} stores, and {STORES_MAX} are the most"
    if max(of_stores, of_sub_topologies) > PARTITIONS_OF_ALL_MAX:
        partitions = max(of_stores, of_sub_topologies)
        return f"its stores have {partitions} partitions together, and {PARTITIONS_OF_ALL_MAX} are the most"
    return ""


def _sharing_topics(stores: Mapping[str, StoreSpec], written_at: Mapping[str, int]) -> dict[str, str]:
    """Return the stores whose topic is another one's, with the words for it: a node reads a topic for one store only.

    The store that was written first has it. No controller publishes two.
    """
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in sorted(stores, key=lambda name: (written_at[f"store/{name}"], name)):
        holder = first.setdefault(stores[name].changelog_topic, name)
        if holder != name:
            found[name] = f"its topic {stores[name].changelog_topic} is that of store {holder}"
    return found


def _check_store(store: assignment_pb2.StoreSpec) -> None:
    checked_name("store", store.name)
    checked_topic("changelog topic", store.changelog_topic)
    for what in ("kind", "key_serde", "value_serde", "partitioner"):
        checked_id(what, getattr(store, what))
    checked_count("partition_count", store.partition_count, PARTITIONS_MAX, 1)
    checked_count("sub_topology", store.sub_topology, SUB_TOPOLOGIES_MAX)
    # The largest number may stand for keeping entries for ever.
    checked_count("retention_ms", store.retention_ms, _INT64_MAX)
    checked_count("window_size_ms", store.window_size_ms, _INT64_MAX)
    checked_list("conformance vectors", store.conformance_vectors, _VECTORS_MAX)
    checked_list("key columns", store.key_columns, COLUMNS_MAX)
    for column in store.key_columns:
        checked_size("column", column.name)
        checked_size("type", column.type)
    if store.layout not in {"", WINDOW, SESSION}:
        raise ContractError(f"layout {store.layout[:100]!r} is not known")


def _check_sub_topology(sub: assignment_pb2.SubTopology) -> None:
    checked_count("number", sub.number, SUB_TOPOLOGIES_MAX)
    checked_size("query", sub.query)
    checked_count("partition_count", sub.partition_count, PARTITIONS_MAX, 1)
    if len(sub.tasks) != sub.partition_count:
        raise ContractError(f"it has {sub.partition_count} partitions and the holders of {len(sub.tasks)}")
    for task in sub.tasks:
        checked_text("active", task.active)
        for holders in (task.standbys, task.warm_ups):
            checked_list("holders of a task", holders, HOLDERS_MAX)
        for holder in (*task.standbys, *task.warm_ups):
            checked_id("holder", holder)
        checked_size("reason", task.reason)


def _check_manifest(manifest: assignment_pb2.Manifest) -> None:
    checked_count("epoch", manifest.epoch, EPOCH_MAX, 1)
    checked_list("keys", manifest.keys)
    if not _may_have_written(manifest.epoch, manifest.keys.values()):
        raise ContractError(
            f"its epoch is {manifest.epoch}, and that of its newest record {max(manifest.keys.values())}"
        )
    checked_size("reason", manifest.reason)
    checked_text("controller", manifest.controller)


def _store_spec(store: assignment_pb2.StoreSpec) -> StoreSpec:
    """Read a store's record; refuse another partitioner: lookups would go to wrong partitions."""
    if store.partitioner != MURMUR2:
        raise ContractError(f"store {store.name}: partitioner {store.partitioner!r} is not known to this version")
    try:
        verify_vectors([(vector.key, vector.hash) for vector in store.conformance_vectors])
    except ValueError as error:
        raise ContractError(f"store {store.name}: {error}") from error
    return StoreSpec(
        **{name: getattr(store, name) for name in _OF_BOTH},
        is_global=getattr(store, "global"),
        key_columns=tuple(KeyColumn(each.name, each.type) for each in store.key_columns),
    )
