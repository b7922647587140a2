"""How a query of the processor does, by its last record of the commits topic and how long ago that was. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from statehouse.control.v1 import commits_pb2

HEARTBEATS_MISSED: Final = 3
"""So many heartbeats must be missing before a processor counts as silent: one or two may be late."""
_HEARTBEAT_OF_OLD_MS: Final = 20_000
"""Processors of 0.2.0 and 0.3.0 don't say how often they write, and write nothing while a batch runs."""


class ReportedState(StrEnum):
    """How a query does."""

    RUNNING = "RUNNING"
    """It runs batches."""
    IDLE = "IDLE"
    """It had nothing to do."""
    RESTARTING = "RESTARTING"
    """It dies and is started again, and has not gone on since."""
    FAILED = "FAILED"
    """It died and is given up."""
    SILENT = "SILENT"
    """Its processor has not been heard for three heartbeats."""
    STOPPED = "STOPPED"
    """Its processor ended in an orderly way."""


def reported_state(commit: commits_pb2.Commit, heard_age_ms: int) -> ReportedState:
    """Return how a query does whose last record was written `heard_age_ms` ago."""
    given_up = commit.failure.given_up
    if commit.stopped:
        return ReportedState.FAILED if given_up else ReportedState.STOPPED
    if heard_age_ms > HEARTBEATS_MISSED * (commit.heartbeat_interval_ms or _HEARTBEAT_OF_OLD_MS):
        return ReportedState.SILENT
    if commit.HasField("failure"):
        return ReportedState.FAILED if given_up else ReportedState.RESTARTING
    return ReportedState.IDLE if commit.idle and not commit.busy else ReportedState.RUNNING
