"""Opens stores. A store keeps its state if its checkpoint allows it; otherwise it is wiped and restored in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from confluent_kafka.admin import AdminClient

from query_service.dataplane.holding import DataPlaneStore, holds, open_in_data_plane
from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import TaskDirectory, remove_given, store_folder
from query_service.replicas.replica import StoreReplica, monotonic_and_wall_ms
from query_service.replicas.tail import Tail, compaction_of
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, FaultOutcome, TaskFault
from query_service.states.keep_or_wipe import Changelog
from query_service.states.manifest import Needed, kept_from
from query_service.stores.base import StateStore
from query_service.stores.catalog import layout_of, open_store
from query_service.stores.engine import StoreUnusable
from query_service.stores.resources import StoreResources
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.moments import NONE
from statehouse.contract.topology import Role, StoreSpec
from statehouse.kafka.offsets import earliest_offsets, last_stable_offsets
from statehouse.kafka.partitioner import partitioner
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.topic_changes import counted
from statehouse.kafka.topics import topic_settings, topic_states
from statehouse.runtime.clocks import process_clock
from statehouse.settings import NodeSettings

log = structlog.get_logger(__name__)


class TopicChanged(TaskFault):
    """The store's topic is not there, or lacks the partition; its task is tried again later."""

    fault = Fault.BROKER


@dataclass(slots=True)
class FoundStore:
    """What there is of a store's partition before it is opened.

    Attributes:
        spec: the store's specification.
        partition: its partition.
        directory: its task's folder.
        path: its own.
        settings: those of its topic.
        partitions: how many the topic has.
        changelog: the partition's log.
        now_ms: when the log's end was asked for, at the latest; wall clock.
        kept: the open store on disk and its checkpoint; None if there is none that may be kept.
        fault: why it may not.
        reason: why it may or may not, in words.

    """

    spec: StoreSpec
    partition: int
    directory: TaskDirectory
    path: Path
    settings: Mapping[str, str]
    partitions: int
    changelog: Changelog
    now_ms: int
    kept: tuple[StateStore, Checkpoint] | None = None
    fault: Fault = Fault.NO_STATE
    reason: str = ""

    @property
    def facts(self) -> dict[str, object]:
        """What log lines say of it."""
        task = str(self.spec.task_id(self.partition))
        return {"task": task, "store": self.spec.name, "partition": self.partition}

    def close(self) -> None:
        """Close the store that was found. Call it in a worker thread."""
        if self.kept is not None:
            (store, _), self.kept = self.kept, None
            store.close()


class StoreOpener:
    """Opens the stores of a node. It asks the broker about their logs, so call it in a worker thread.

    `on_misplaced` is what replicas call. `plane`: holds stores; None: all are held here. `stores_held` returns how many
    the node has, or is about to have.
    """

    def __init__(
        self,
        settings: NodeSettings,
        client_id: str,
        resources: StoreResources,
        metrics: NodeMetrics,
        on_misplaced: Callable[[], None],
        plane: DataPlane | None = None,
        stores_held: Callable[[], int] = lambda: 1,
    ) -> None:
        self._admin = RenewedAdmin(settings.brokers, f"{client_id}-tasks")
        self._settings, self._resources, self._metrics = settings, resources, metrics
        self._partition_of, self._on_misplaced = partitioner(), on_misplaced
        self._plane, self._stores_held = plane, stores_held

    def _open_store(self, spec: StoreSpec, path: Path) -> StateStore:
        """Open one partition of a store where its entries are: in the data plane or here."""
        if self._plane is None or not holds(spec):
            return open_store(spec, path, self._resources)
        return open_in_data_plane(
            self._plane,
            spec,
            path,
            stores=self._stores_held(),
            tail_bytes=self._settings.watch_tail_bytes,
            memory_bytes=self._settings.memory_store_max_bytes,
        )

    def open(self, spec: StoreSpec, partition: int, directory: TaskDirectory, role: Role) -> StoreReplica:
        """Open one partition of a store, and return its replica, as `look` and `replica_of` do."""
        return self.replica_of(self.look(spec, partition, directory), role)

    def look(self, spec: StoreSpec, partition: int, directory: TaskDirectory) -> FoundStore:
        """Look what there is of a store's partition: its log, and the state on disk, which is open if it may be kept.

        Raises:
            TaskFault: the disk refuses, or a plug-in failed.
            ConfigurationError: this node can't serve the specification.
            KafkaException: the broker can't be reached, or refuses.

        """
        settings, partitions, changelog = self._admin.ask(partial(_topic_and_log, spec.changelog_topic, partition))
        # Taken after the ends, so that a fresh store gets every record that is written from this time on.
        now_ms = monotonic_and_wall_ms()[1]
        path = directory.store_path(store_folder(spec, partition))
        remove_given(path)
        found = FoundStore(spec, partition, directory, path, settings, partitions, changelog, now_ms)
        if not spec.ephemeral:
            self._open_kept(found)
        return found

    def replica_of(self, found: FoundStore, role: Role) -> StoreReplica:
        """Return the replica of a store: of the state that was found, or of none. No thread reads the log for it yet.

        Raises as `look` does.
        """
        spec, changelog, now_ms, clock = found.spec, found.changelog, found.now_ms, process_clock()
        if found.kept is None:
            # An ephemeral store always begins empty, at the end of its log: a lost position needs no extra care.
            start = changelog.end_offset if spec.ephemeral else changelog.first_offset
            if spec.ephemeral:
                log.info("ephemeral store opened", **found.facts, position=start)
            else:
                log.info("store restored from the start", **found.facts, fault=found.fault.value, reason=found.reason)
                self._metrics.full_restore(spec.name, found.fault)
            found.directory.wipe_store(found.path.name)
            store = self._open_store(spec, found.path)
            checkpoint = Checkpoint(
                spec.changelog_topic,
                changelog.topic_id,
                start,
                now_ms,
                layout=layout_of(spec, store),
                misplaced=0,
                placed_by=spec.partition_count,
                records_end=0,
            ).by(clock.boot_id, clock.offset_ms)
        else:
            store, checkpoint = found.kept
            log.info("store opened", **found.facts, position=checkpoint.position, reason=found.reason)
        replica = StoreReplica(
            spec,
            found.partition,
            store,
            checkpoint,
            self._metrics.of(spec.name, role),
            tail=Tail(self._settings.watch_tail_bytes, compaction_of(found.settings), checkpoint.position),
            tombstones_kept_ms=None if spec.ephemeral else changelog.tombstones_kept_ms,
            since_ms=now_ms if spec.ephemeral else None,
            restored_to=None if spec.ephemeral else changelog.end_offset,
            restored_in_full=found.kept is None and not spec.ephemeral,
            log_start=changelog.first_offset,
            ends_valid_s=self._settings.session_timeout_ms / 1000,
            partition_of=self._partition_of,
            on_misplaced=self._on_misplaced,
            pinned=store.engine.pinned if isinstance(store, DataPlaneStore) else None,
            latest=store.engine.latest if isinstance(store, DataPlaneStore) else None,
        )
        replica.restored_by = "log" if found.kept is None else "disk"
        replica.topic_change = counted(spec.partition_count, found.partitions)
        return replica

    def needed_now(self, found: FoundStore) -> Needed:
        """Return what a state must be to be kept, of a kind that the data plane holds, by the log as it is now.

        Raises:
            TaskFault: the topic is missing, or has no such partition any more.
            KafkaException: the broker can't be reached, or refuses.

        """
        asked = self._admin.ask(partial(_topic_and_log, found.spec.changelog_topic, found.partition))
        return replace(self.needed(found, None), changelog=asked[2])

    def needed(self, found: FoundStore, store: StateStore | None) -> Needed:
        """Return what a state must be to be kept. `store`: the open one; None of a kind that the data plane holds."""
        return Needed(
            found.spec.name,
            found.partition,
            "" if self._plane is None else self._plane.engine,
            layout_of(found.spec, store),
            found.spec.partition_count,
            found.spec.foreign and not found.spec.is_global,
            found.changelog,
        )

    def _open_kept(self, found: FoundStore) -> None:
        """Open the store on disk, and leave it open if it may be kept."""
        try:
            _refuse_condemned(found.directory, found.path.name)
            store = self._open_store(found.spec, found.path)
            checkpoint, clock = store.checkpoint(), process_clock()
            if checkpoint is not None:
                checkpoint = checkpoint.by(clock.boot_id, clock.offset_ms).checked_by(found.spec.partition_count)
            start = kept_from(checkpoint, self.needed(found, store), found.now_ms)
            found.reason = start.reason
            if start.position is not None and checkpoint is not None:
                if start.fault is not None:
                    self._metrics.fault(start.fault, FaultOutcome.PASSED_OVER)
                if start.position != checkpoint.position:
                    # What it was before the records that have expired is no batch's state.
                    checkpoint = replace(checkpoint, position=start.position, batch=NONE, records_end=start.position)
                found.kept = store, checkpoint
                return
            store.close()
            found.fault = start.fault or Fault.NO_STATE
        except StoreUnusable as error:
            found.fault, found.reason = error.fault, str(error)


def _refuse_condemned(directory: TaskDirectory, folder: str) -> None:
    if directory.is_condemned(folder):
        raise StoreUnusable("it differed, and is to be restored", Fault.DIFFERED)


def _topic_and_log(topic: str, partition: int, admin: AdminClient) -> tuple[Mapping[str, str], int, Changelog]:
    """Ask the broker for a topic's settings and number of partitions, and for the state of a partition's log.

    Raises:
        TaskFault: the topic is missing, or has no such partition any more.
        KafkaException: the broker can't be reached, or refuses.

    """
    found = topic_states(admin, [topic]).get(topic)
    if found is None or found.partitions <= partition:
        missing = "does not exist" if found is None else f"has only {found.partitions} partitions"
        raise TopicChanged(f"topic {topic} {missing}, and partition {partition} of the store is read from it")
    settings = topic_settings(admin, topic)
    at = (topic, partition)
    changelog = Changelog(
        topic,
        found.topic_id,
        earliest_offsets(admin, [at])[at],
        last_stable_offsets(admin, [at])[at],
        int(settings["delete.retention.ms"]) if "compact" in settings["cleanup.policy"] else None,
        expires="delete" in settings["cleanup.policy"],
    )
    return settings, found.partitions, changelog
