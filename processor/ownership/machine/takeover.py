"""Decides when a standby controller takes over: after one session timeout of the acting controller's silence. Pure.

Silence is not what this process has failed to hear. It counts only up to the time for which Kafka has confirmed that
the log holds nothing more, and only while this process was in touch with Kafka all along. So a standby that is cut off
takes nothing, and one that was frozen first reads what it has missed.
"""

from __future__ import annotations

from dataclasses import dataclass

from processor.ownership.settings import OwnershipSettings

_CONTACT_SHARE = 0.5
_CONTACT_S = 1.0
"""A longer time between two confirmations than this and that share of the session timeout was a time out of touch."""


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """One sign of life of the acting controller."""

    controller: str
    """Random id of the controller's process run."""
    host: str
    """Where it runs, for people."""
    is_standby: bool
    """Whether it is a standby controller that has taken over."""
    heartbeat: int
    """Grows with each record of a run."""
    settings: OwnershipSettings
    has_stopped: bool = False
    """Whether it was stopped: nobody need wait for its silence."""


class Takeover:
    """What a standby controller knows of the acting one. Every time is in seconds of a monotonic clock.

    Feed it the log in order: records as they are read, and each confirmation that the log was read to its end.
    """

    def __init__(self, before: ControllerRecord | None = None) -> None:
        """Know of no controller yet: without one there are no settings to go on with, so nothing is taken over.

        `before` is the record after which this controller took over already, if it did and was fenced since. The
        controller that fenced it has a session timeout to write a record, also if `before` says that its writer ended.
        """
        self._before = before
        self.acting: ControllerRecord | None = None
        """The acting controller's last record; None if there is none, or if it can't be read."""
        self._quiet_since = 0.0
        self._contact_at: float | None = None

    def hear(self, record: ControllerRecord | None, now: float) -> None:
        """Take the acting controller's record, read at `now`; None for one that can't be read.

        A record that can't be read is a sign of life, too, but nobody can take over without its settings. One that is
        read twice proves nothing about now.
        """
        known = self.acting
        if (
            known is not None
            and record is not None
            and known.controller == record.controller
            and record.heartbeat == known.heartbeat
        ):
            return
        self.acting = record
        self._quiet_since = now

    def confirm(self, asked_at: float) -> None:
        """Take that all records are read which were in the log at `asked_at`."""
        last, self._contact_at = self._contact_at, asked_at
        if last is None or asked_at - last > self._longest_gap_s:
            self._quiet_since = max(self._quiet_since, asked_at)

    def is_due(self, now: float) -> bool:
        """Whether the acting controller has stopped, or has been silent for its session timeout.

        A confirmation from long before `now` says nothing: this process may have been frozen since.
        """
        if self.acting is None or self._contact_at is None or now - self._contact_at > self._longest_gap_s:
            return False
        is_free = self.acting.has_stopped and self.acting != self._before
        return is_free or self._contact_at - self._quiet_since >= self._timeout_s

    @property
    def _timeout_s(self) -> float:
        return 0.0 if self.acting is None else self.acting.settings.session_timeout_s

    @property
    def _longest_gap_s(self) -> float:
        return max(_CONTACT_S, _CONTACT_SHARE * self._timeout_s)
