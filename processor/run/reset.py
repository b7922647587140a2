"""Resets an application: deletes its state, so that its next start reads its sources from the earliest offset.

It deletes Spark's checkpoints and the stores' changelogs. Nodes follow on their own: a node wipes a store whose topic
has a new id (docs/state-directory.md). In Kafka Streams, the application reset tool and `cleanUp()` on each instance
do this.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.topics.controller_record import read_controller
from statehouse.contract.assignment import CONTROLLER_KEY, AssignmentReader
from statehouse.contract.processor_reports import decode_commit
from statehouse.contract.topology import (
    StoreSpec,
    assignment_topic,
    changelog_topic,
    commits_topic,
    dead_letters_topic,
    updates_topic,
)
from statehouse.control.v1 import commits_pb2
from statehouse.errors import ConfigurationError, ContractError, StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.authors import RecordSigning
from statehouse.kafka.control_log import OnRecord
from statehouse.kafka.control_read import read_to_ends
from statehouse.kafka.offsets import earliest_offsets, last_stable_offsets
from statehouse.kafka.topics import partition_counts
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

ALIVE_S: Final = 30.0
"""A processor counts as alive for this long after a record of it, unless that record is marked as the last."""
_DELETE_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1


class ResetRefused(StatehouseError):
    """The application can't be reset now."""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The things that a reset deletes."""

    application_id: str
    checkpoints: Path
    """The directory with the application's checkpoints."""
    queries: tuple[str, ...]
    """Queries with a checkpoint in that directory."""
    topics: Mapping[str, int]
    """Topics of the stores -> number of offsets in each."""
    committed: tuple[str, ...]
    """Stores with a commit record."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (self.queries or self.topics or self.committed or self.checkpoints.exists())

    @property
    def kept(self) -> str:
        """The topic of the dead letters, which are kept."""
        return dead_letters_topic(self.application_id)


class _Control:
    """What the control topics say of the application and of its processor's life."""

    def __init__(self, application_id: str) -> None:
        self.application_id = application_id
        skipped = UnreadableRecords()
        self._on_unreadable = partial(skipped.note, "assignment")
        self._on_unreadable_commit = partial(skipped.note, "commits")
        self.assignments = AssignmentReader(self._on_unreadable)
        self.commits: dict[str, tuple[commits_pb2.Commit, int]] = {}
        """The latest commit record of each store, and when it was written."""
        self._controller: tuple[ControllerRecord | None, int] | None = None
        """The acting controller's last record, None if it is of another version, and when it was written."""

    def read(self, admin: AdminClient, brokers: Brokers | str, timeout_s: float) -> None:
        """Read the topics that are there.

        Raises:
            LookupFailure: UNREACHABLE, Kafka could not be read in time.
            KafkaException: the brokers can't be reached, or refuse the request.

        """
        control: dict[str, OnRecord] = {
            assignment_topic(self.application_id): self._take,
            commits_topic(self.application_id): self._take_commit,
        }
        there = partition_counts(admin, list(control), timeout_s)
        present = {topic: take for topic, take in control.items() if there[topic] is not None}
        read_to_ends(brokers, present, f"{self.application_id}-reset", timeout_s)

    @property
    def specs(self) -> Sequence[StoreSpec]:
        """The stores of the assignment."""
        return () if self.assignments.current is None else tuple(self.assignments.current.stores.values())

    @property
    def own_topics(self) -> list[str]:
        """The topics that its processor writes for its stores: not those that others write, as a global store's."""
        names = [spec.name for spec in self.specs]
        named = {topic(self.application_id, name) for name in names for topic in (changelog_topic, updates_topic)}
        return sorted({spec.changelog_topic for spec in self.specs if not spec.is_global} & named)

    @property
    def read_topics(self) -> set[str]:
        """The topics that its processor and its nodes read."""
        sources = {end.topic for commit, _ in self.commits.values() for end in commit.source_ends}
        return sources | {spec.changelog_topic for spec in self.specs}

    def refuse_while_alive(self, now_s: float) -> None:
        """Refuse the reset while there are signs of a live processor: commit records, or its controller's heartbeat.

        A processor that starts has a controller before its first commit.

        Raises:
            ResetRefused: a record is young and isn't marked as the last.

        """
        signs = [
            ("wrote a commit record", timestamp_ms, ALIVE_S)
            for commit, timestamp_ms in self.commits.values()
            if not commit.stopped
        ]
        if self._controller is not None:
            record, timestamp_ms = self._controller
            lives_s = ALIVE_S if record is None else max(ALIVE_S, record.settings.session_timeout_s)
            if record is None or not (record.has_stopped or record.is_standby):
                signs.append(("wrote its controller's heartbeat", timestamp_ms, lives_s))
        for what, timestamp_ms, lives_s in signs:
            age_s = max(0.0, now_s - timestamp_ms / 1000)
            if age_s < lives_s:
                raise ResetRefused(
                    f"a processor of {self.application_id} {what} {age_s:.0f} s ago: stop it first. If it was killed, "
                    f"try again in {lives_s - age_s:.0f} s"
                )

    def _take(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if key == CONTROLLER_KEY:
            known = None if self._controller is None else self._controller[0]
            record = read_controller(value, known, self._on_unreadable)
            if record is None or record is not known:  # not one that was skipped
                self._controller = None if value is None else (record, timestamp_ms)
        else:
            self.assignments.feed(key, value)

    def _take_commit(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        store = (key or b"").decode(errors="replace")
        if value is None:
            self.commits.pop(store, None)
            return
        try:
            self.commits[store] = decode_commit(key, value), timestamp_ms
        except ContractError as error:
            self._on_unreadable_commit(key, error)


def _looked_at(brokers: Brokers | str, application_id: str, timeout_s: float) -> tuple[AdminClient, _Control]:
    """Read the control topics of an application, and refuse the reset while it is alive."""
    admin = clients.admin(brokers, f"{application_id}-reset")
    control = _Control(application_id)
    control.read(admin, brokers, timeout_s)
    control.refuse_while_alive(time.time())
    return admin, control


def topics_read_by(brokers: Brokers | str, application_id: str, other: str, timeout_s: float) -> list[str]:
    """Return those topics of an application's stores that another application reads.

    Raises:
        LookupFailure: UNREACHABLE, Kafka could not be read in time.
        KafkaException: the brokers can't be reached, or refuse the request.

    """
    admin = clients.admin(brokers, f"{application_id}-reset")
    own, others = _Control(application_id), _Control(other)
    for control in (own, others):
        control.read(admin, brokers, timeout_s)
    return sorted({*own.own_topics} & others.read_topics)


def plan_reset(brokers: Brokers | str, application_id: str, checkpoint_dir: str, timeout_s: float) -> ResetPlan:
    """Find the state of an application.

    Raises:
        ResetRefused: a processor of the application is alive.
        ConfigurationError: its checkpoints aren't on this machine.
        LookupFailure: UNREACHABLE, Kafka could not be read in time.
        KafkaException: the brokers can't be reached, or refuse the request.

    """
    checkpoints = _local(checkpoint_dir) / application_id
    admin, control = _looked_at(brokers, application_id, timeout_s)
    return ResetPlan(
        application_id,
        checkpoints,
        tuple(sorted(path.name for path in checkpoints.iterdir() if path.is_dir())) if checkpoints.is_dir() else (),
        _held(admin, control.own_topics, timeout_s),
        tuple(sorted(control.commits)),
    )


def carry_out(brokers: Brokers | str, plan: ResetPlan, timeout_s: float) -> None:
    """Delete everything in the plan. If interrupted, run it again: no checkpoint is ever left without its changelog.

    It looks for a live processor once more: one may have been started since the plan was made and shown.

    Raises:
        ResetRefused: a processor of the application is alive.
        LookupFailure: UNREACHABLE, Kafka could not be read in time.
        KafkaException: the brokers can't be reached, or refuse the request.
        OSError: the checkpoints can't be deleted.

    """
    admin, _ = _looked_at(brokers, plan.application_id, timeout_s)
    # Remove it in one step, because the next start would take a part of a checkpoint for a whole one.
    if plan.checkpoints.exists():
        doomed = plan.checkpoints.with_name(f".{plan.application_id}.reset-{uuid.uuid4().hex[:8]}")
        plan.checkpoints.rename(doomed)
        shutil.rmtree(doomed)
    delete_topics(admin, list(plan.topics))
    # The commit records say how far the sources are processed; that is no longer true.
    _forget(brokers, plan)


def _local(checkpoint_dir: str) -> Path:
    parts = urlsplit(checkpoint_dir)
    if parts.scheme not in {"", "file"}:
        raise ConfigurationError(
            f"the checkpoints are on {checkpoint_dir}: this command deletes checkpoints only on a disk of this "
            "machine. Delete the application's directory with the tools of that file system, then run this command "
            "with an empty local --checkpoint-dir"
        )
    return Path(parts.path if parts.scheme else checkpoint_dir)


def _held(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> dict[str, int]:
    """Return the number of offsets in each of the topics that exists."""
    counts = partition_counts(admin, topics, timeout_s) if topics else {}
    partitions = [(topic, each) for topic, count in counts.items() for each in range(count or 0)]
    starts, ends = earliest_offsets(admin, partitions), last_stable_offsets(admin, partitions)
    return {
        topic: sum(ends.get(at, 0) - starts.get(at, 0) for at in partitions if at[0] == topic)
        for topic, count in counts.items()
        if count is not None
    }


def delete_topics(admin: AdminClient, topics: list[str]) -> None:
    """Delete topics, those that are there, and wait until the brokers know.

    Raises:
        KafkaException: the brokers can't be reached, or refuse the request.

    """
    if not topics:
        return
    for topic, future in admin.delete_topics(topics, operation_timeout=_DELETE_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        log.info("topic deleted", topic=topic)
    # Wait until every broker knows that the topics are gone, so that the next start doesn't find them.
    deadline = time.monotonic() + _DELETE_TIMEOUT_S
    while any(count is not None for count in partition_counts(admin, topics).values()):
        if time.monotonic() >= deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"brokers still know {', '.join(topics)}"))  # noqa: SLF001 - the client's public constant
        time.sleep(_POLL_S)


def _forget(brokers: Brokers | str, plan: ResetPlan) -> None:
    if not plan.committed:
        return
    producer = clients.producer(brokers, f"{plan.application_id}-reset")
    topic, signing = commits_topic(plan.application_id), RecordSigning(brokers)
    for store in plan.committed:
        signed = signing.options(topic, store.encode(), None)
        producer.produce(topic, key=store.encode(), value=None, partition=0, **signed)
    if producer.flush(_DELETE_TIMEOUT_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "commit records not deleted: repeat the reset"))  # noqa: SLF001 - as above
