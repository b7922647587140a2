"""Faults: what can be wrong with a task's disk, log or environment, as a bounded set of names.

Whoever finds a fault names it; metrics, logs and `GetNode` carry the name. What becomes of each stands in
docs/state-directory.md.
"""

from __future__ import annotations

import errno
from enum import StrEnum

from statehouse.errors import ConfigurationError, StatehouseError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Fault(StrEnum):
    """What was found to be wrong."""

    NO_STATE = "no_state"
    """There is nothing yet: a first start, a store in memory, or a folder that was removed."""
    CORRUPT_STORE = "corrupt_store"
    """What is on disk is no intact database of ours."""
    UNKNOWN_FORMAT = "unknown_format"
    """The store was written by a version with another format, or as another kind of store than it is now."""
    TOPIC_RECREATED = "topic_recreated"
    """The changelog is another one than the state is of."""
    LOG_TRUNCATED = "log_truncated"
    """The log no longer has, or never had, the position that the state stands for."""
    CHECKPOINT_TOO_OLD = "checkpoint_too_old"
    """Tombstones that the state needs may have left the log."""
    DISK_FULL = "disk_full"
    """No space, or no quota, is left."""
    DISK_REFUSED = "disk_refused"
    """The disk is read-only, not ours to write, or the system refuses files."""
    LOCK_HELD = "lock_held"
    """Another process has the task's folder."""
    MEMORY_BUDGET = "memory_budget"
    """A store in memory would grow beyond its budget."""
    LOG_EXPIRED = "log_expired"
    """The log, one that expires by age or size, no longer has the position: what is missing has expired."""
    UNREADABLE_RECORD = "unreadable_record"
    """A record of the changelog can't be one of this store."""
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    """The readable copy of the stores' places is damaged."""
    BROKER = "broker"
    """Kafka can't be asked, or refuses."""
    CONFIGURATION = "configuration"
    """The store can't be served as it is specified."""
    DEFECT = "defect"
    """Anything else: a defect, of this program or of a plug-in."""


class Outcome(StrEnum):
    """What became of a fault."""

    TASK_STOPPED = "task_stopped"
    """The task went to `error`, and is opened again later."""
    STORE_WIPED = "store_wiped"
    """The store is restored from the start of its log."""
    PASSED_OVER = "passed_over"
    """Nothing is lost, or what is lost was due to go."""


class TaskFault(StatehouseError):
    """What stops one task. Each class has its fault; where it depends, the one who raises says it."""

    fault = Fault.DEFECT

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        if fault is not None:
            self.fault = fault


def fault_of(error: Exception) -> Fault:
    """Return what an error that stops a task is; that it comes from Kafka is for the caller to say."""
    if isinstance(error, TaskFault):
        return error.fault
    if isinstance(error, OSError):
        return Fault.DISK_FULL if error.errno in _FULL else Fault.DISK_REFUSED
    return Fault.CONFIGURATION if isinstance(error, ConfigurationError) else Fault.DEFECT
