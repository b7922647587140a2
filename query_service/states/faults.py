"""Faults: a bounded set of names for what can be wrong with a task's disk, log or environment.

The code that finds a fault names it; metrics, logs and `GetNode` show the name. docs/state-directory.md says what
happens after each fault.
"""

from __future__ import annotations

import errno
from enum import StrEnum

from statehouse.errors import ConfigurationError, StatehouseError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Fault(StrEnum):
    """What was found to be wrong."""

    NO_STATE = "no_state"
    """There is no state yet: a first start, a store in memory, or a folder that was removed."""
    CORRUPT_STORE = "corrupt_store"
    """The directory holds no intact database of ours."""
    UNKNOWN_FORMAT = "unknown_format"
    """A version with another format wrote the store, or the store was of another kind when it was written."""
    TOPIC_RECREATED = "topic_recreated"
    """The state was built from another changelog topic, or from an older one with the same name."""
    LOG_TRUNCATED = "log_truncated"
    """The log no longer has the position of the state, or never had it."""
    CHECKPOINT_TOO_OLD = "checkpoint_too_old"
    """Tombstones that the state needs may have left the log."""
    PLACEMENT_UNCHECKED = "placement_unchecked"
    """Other programs write the changelog, and the version that built the state didn't check where records stand."""
    DISK_FULL = "disk_full"
    """No space, or no quota, is left."""
    DISK_REFUSED = "disk_refused"
    """The disk is read-only, not ours to write, or the system refuses files."""
    LOCK_HELD = "lock_held"
    """Another process uses the task's folder."""
    MEMORY_BUDGET = "memory_budget"
    """A store in memory would exceed its budget."""
    LOG_EXPIRED = "log_expired"
    """The log deletes records by age or size, and no longer has the position: the missing records have expired."""
    DIFFERED = "differed"
    """The store had other entries than the changelog, or other replicas: somebody has it restored."""
    UNREADABLE_RECORD = "unreadable_record"
    """A record of the changelog can't belong to this store."""
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    """The readable copy of the stores' positions is damaged."""
    PEER_FAILED = "peer_failed"
    """Another node can't give a store, ended half-way, or fell silent."""
    PEER_SLOW = "peer_slow"
    """Another node's files came so slowly that the log is faster."""
    FILE_DAMAGED = "file_damaged"
    """A file of another node's has arrived with another checksum than it has there."""
    BROKER = "broker"
    """Kafka can't be reached, or refuses a request."""
    CONFIGURATION = "configuration"
    """The store can't be served with its specification."""
    DEFECT = "defect"
    """Anything else: a defect in this program or in a plug-in."""


class FaultOutcome(StrEnum):
    """What happened after a fault."""

    TASK_STOPPED = "task_stopped"
    """The task went to the state `error`, and is opened again later."""
    STORE_WIPED = "store_wiped"
    """The store is restored from the start of its log."""
    PASSED_OVER = "passed_over"
    """Nothing is lost, or the lost records were about to expire anyway."""


class TaskFault(StatehouseError):
    """An error that stops one task. Each class has its fault; a caller may pass another one."""

    fault = Fault.DEFECT

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        if fault is not None:
            self.fault = fault


def fault_of(error: Exception) -> Fault:
    """Return the fault of an error that stops a task. The caller must know on its own if the error comes from Kafka."""
    if isinstance(error, TaskFault):
        return error.fault
    if isinstance(error, OSError):
        return Fault.DISK_FULL if error.errno in _FULL else Fault.DISK_REFUSED
    return Fault.CONFIGURATION if isinstance(error, ConfigurationError) else Fault.DEFECT
