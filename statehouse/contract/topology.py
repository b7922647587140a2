"""Parts of a topology: tasks, store specifications, and the names of their topics."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

from statehouse.control.v1 import members_pb2
from statehouse.errors import ContractError
from statehouse.keys.columns import KeyColumn

KEY_VALUE = "key-value"
WINDOW = "window"
SESSION = "session"
VERSIONED = "versioned"
STORE_KINDS = (KEY_VALUE, WINDOW, SESSION, VERSIONED)
MURMUR2 = "murmur2"
GLOBAL_FOLDER = "global"

# Kafka's rule for topic names, but shorter, to leave room for suffixes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


class Role(IntEnum):
    """A replica's role; the numbers equal both protobuf enums' (control and public)."""

    ACTIVE = members_pb2.ROLE_ACTIVE
    STANDBY = members_pb2.ROLE_STANDBY
    WARM_UP = members_pb2.ROLE_WARM_UP
    DORMANT = members_pb2.ROLE_DORMANT
    GLOBAL = members_pb2.ROLE_GLOBAL


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A task: one partition of a sub-topology, with this partition of each of its stores."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        """Return `<sub-topology>_<partition>`, as in directory names and on the wire."""
        return f"{self.sub_topology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `<sub-topology>_<partition>`.

        Raises:
            ContractError: the text is not of that form.

        """
        match = re.fullmatch(r"([0-9]{1,9})_([0-9]{1,9})", text)
        if match is None:
            raise ContractError(f"{text!r} is not a task id: it must look like 0_3")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, order=True)
class GlobalId:
    """A node's copy of a global store: held like a task, but by every node and without an assignment."""

    store: str

    def __str__(self) -> str:
        """Return `global/<store>`, as in directory names and on the wire."""
        return f"{GLOBAL_FOLDER}/{self.store}"


AnyTaskId = TaskId | GlobalId
"""The id of a task or of a global store's copy: a node holds both."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store's specification, published by the processor.

    Attributes:
        changelog_topic: for an ephemeral store the topic of its updates, for a global store its source topic.
        sub_topology: its number; unused for a global store.
        kind: one of STORE_KINDS, or a custom kind with a plug-in on the nodes.
        in_memory: kept in the node's memory only.
        retention_ms: window and session stores: how long entries are kept, in stream time; versioned stores: how far
            back as-of reads can go.
        window_size_ms: window stores: the length of a window.
        retain_duplicates: window stores: several values per key and window start.
        is_global: every node holds all of it; it has no task.
        ephemeral: the store has no changelog: a replica starts empty at the topic's end and keeps no checkpoint.
        layout: custom kinds: WINDOW or SESSION if its record keys are laid out like theirs; empty for plain keys.
        committed: the application's processor writes the store, and says in the commits topic when a batch is whole.
        foreign: programs other than the application's processor write the changelog, so that how they place keys is not
            known before all of it has been read.
        key_columns: of keys that are JSON documents made of columns: the columns, in their order.

    """

    name: str
    changelog_topic: str
    partition_count: int
    sub_topology: int
    kind: str = KEY_VALUE
    key_serde: str = "string"
    value_serde: str = "json"
    partitioner: str = MURMUR2
    in_memory: bool = False
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False
    is_global: bool = False
    ephemeral: bool = False
    layout: str = ""
    committed: bool = False
    foreign: bool = False
    key_columns: tuple[KeyColumn, ...] = ()

    @property
    def built_on(self) -> str:
        """The built-in kind whose record keys, times and retention it has: of a custom kind the one it builds on."""
        return built_on(self.kind, self.layout)

    @property
    def is_persistent(self) -> bool:
        """Whether nodes keep the store on disk."""
        return not self.in_memory and not self.ephemeral

    @property
    def stored(self) -> StoreSpec:
        """The specification without the fields for showing entries; stores with an equal one hold equal data."""
        return replace(self, key_serde="", value_serde="", window_size_ms=0, committed=False, foreign=False)

    def task_id(self, partition: int) -> AnyTaskId:
        """Return the task or global store that holds this partition."""
        return GlobalId(self.name) if self.is_global else TaskId(self.sub_topology, partition)


@dataclass(frozen=True, slots=True)
class SubTopology:
    """The stores of one query that have the same partition count."""

    number: int
    query: str
    partition_count: int

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Its tasks, one per partition."""
        return tuple(TaskId(self.number, partition) for partition in range(self.partition_count))


def built_on(kind: str, layout: str) -> str:
    """Return the built-in kind that a kind is, or builds on."""
    return kind if kind in STORE_KINDS else layout or KEY_VALUE


def checked_name(kind: str, name: str) -> str:
    """Return the name, if it may be part of a topic's name.

    Raises:
        ContractError: the name has other characters, or is too long.

    """
    if _NAME.fullmatch(name) is None:
        raise ContractError(
            f"{kind} {name!r} can't be part of a topic name: use 1 to 150 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    return name


def changelog_topic(application_id: str, store: str) -> str:
    """Name the changelog of a store (Kafka Streams' own form)."""
    return f"{checked_name('application id', application_id)}-{checked_name('store', store)}-changelog"


def updates_topic(application_id: str, store: str) -> str:
    """Name the topic of an ephemeral store's updates."""
    return f"{checked_name('application id', application_id)}-{checked_name('store', store)}-updates"


def members_topic(application_id: str) -> str:
    """Name the topic of the nodes' heartbeats."""
    return f"{checked_name('application id', application_id)}-statehouse-members"


def assignment_topic(application_id: str) -> str:
    """Name the topic of the assignment."""
    return f"{checked_name('application id', application_id)}-statehouse-assignment"


def commits_topic(application_id: str) -> str:
    """Name the topic of the processor's commits."""
    return f"{checked_name('application id', application_id)}-statehouse-commits"


def control_topic_names(application_id: str) -> tuple[str, str, str]:
    """Name the control topics. Each has one partition."""
    return members_topic(application_id), assignment_topic(application_id), commits_topic(application_id)


def dead_letters_topic(application_id: str) -> str:
    """Name the topic of the records the application could not process."""
    return f"{checked_name('application id', application_id)}-dead-letters"
