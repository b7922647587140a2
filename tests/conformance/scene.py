"""A node at one moment, without a broker: the stores, the replicas that it holds, and what it knows of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from statehouse.contract.first_batch import Ends
from statehouse.contract.membership import TaskState
from statehouse.contract.placement import StorePlacement
from statehouse.contract.topology import Role, StoreSpec

NODE = "node-1"
OTHER = "node-2"
EPOCH = 7
ENDS_VALID_S = 1_800.0
"""How long an end tells the lag."""

Entry = tuple[bytes, bytes | None, int]
"""A changelog record's key, value and timestamp."""


@dataclass(frozen=True, slots=True)
class Held:
    """A replica of the node.

    Attributes:
        store: the store's name.
        partition: the changelog partition.
        entries: the records that the replica has applied, in order.
        role: of the task.
        state: of the task.
        error: why the task is in ERROR.
        behind: how many records the log's end is ahead.
        asked_ms_ago: when the end was asked for; None: no end is known. It tells the lag for `ENDS_VALID_S`.
        since_ms: when an ephemeral store began.
        topic_change: how the topic differs from what the store needs.

    """

    store: str
    partition: int
    entries: tuple[Entry, ...] = ()
    role: Role = Role.ACTIVE
    state: TaskState = TaskState.RUNNING
    error: str = ""
    behind: int = 0
    asked_ms_ago: int | None = 0
    since_ms: int | None = None
    topic_change: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a node holds and knows.

    Attributes:
        stores: the stores of the assignment; partitions that the node doesn't hold are the other node's.
        held: its replicas.
        is_confirmed: whether it has been in touch with Kafka within the session timeout.
        reports: by store, how many milliseconds ago the processor reported, and the backlog then.
        proven: by store, where the records of the commits topic prove a whole batch.
        placements: what is known of the placement of the stores' records.

    """

    stores: tuple[StoreSpec, ...]
    held: tuple[Held, ...]
    is_confirmed: bool = True
    reports: Mapping[str, tuple[int, int | None]] = field(default_factory=lambda: MappingProxyType({}))
    proven: Mapping[str, Ends] = field(default_factory=lambda: MappingProxyType({}))
    placements: Mapping[str, StorePlacement] = field(default_factory=lambda: MappingProxyType({}))

    def spec(self, store: str) -> StoreSpec:
        """Return a store's specification."""
        return next(spec for spec in self.stores if spec.name == store)
