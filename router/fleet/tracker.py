"""Follows the fleet: records of the assignment and members topics come in, routing tables go out.

Lives on the event loop; the threads that read the topics pass on what they decoded. Rebuilds are coalesced: at
most one is pending, and there is a pause between two, so that a fleet's heartbeats can't keep the loop busy. The
first table is made when both topics have been read to their ends once: a log that has not been compacted holds
old epochs, which must not be served while the newer ones are still being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable, compile_table
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import FORGET_AFTER_SESSIONS, Member
from statehouse.contract.placement import FleetPlacements
from statehouse.runtime.background import as_error
from statehouse.serdes.plugins import Serdes

_REBUILD_PAUSE_S = 0.02


def _raise(error: Exception) -> None:
    """Raise a defect: the event loop's handler gets it."""
    raise error


class FleetTracker:
    """Builds tables, publishes them to `tables` and calls `on_table` with each. `rack`: the router's own.

    `version`: the fleet's version of the application, as stamps have it.

    `on_defect(error)` is called when a table can't be built: the last one stays, and grows stale.

    A member leaves by its tombstone. One that falls silent stays: its last known address may still answer, and calls
    find out sooner than heartbeats would. It is forgotten only if the assignment doesn't name it, once its last
    heartbeat is FORGET_AFTER_SESSIONS session timeouts older than the newest heartbeat of any member.
    """

    def __init__(
        self,
        tables: CurrentTable,
        on_table: Callable[[RoutingTable], None],
        *,
        session_timeout_s: float,
        rack: str = "",
        version: str = "",
        on_defect: Callable[[Exception], None] = _raise,
    ) -> None:
        self._tables, self._on_table, self._session_timeout_s = tables, on_table, session_timeout_s
        self._rack, self._version, self._on_defect = rack, version, on_defect
        self._serdes = Serdes()
        self._assignment: Assignment | None = None
        self._named: frozenset[str] = frozenset()
        self._members: dict[str, Member] = {}
        self._placements = FleetPlacements()
        self._heard_at: dict[str, float] = {}
        self._unread = {"assignment", "members"}
        self._pending: asyncio.TimerHandle | None = None
        self._built_at = 0.0

    def on_caught_up(self, log: str) -> None:
        """Note that "assignment" or "members" has been read to its end."""
        if log in self._unread:
            self._unread.discard(log)
            self._schedule()

    def on_first_assignment(self, assignment: Assignment) -> None:
        """Take the first assignment of a log; its epoch says nothing of those of the log before."""
        self._tables.forget_epoch()
        self.on_assignment(assignment)

    def on_assignment(self, assignment: Assignment) -> None:
        """Take a newer assignment."""
        self._assignment = assignment
        self._named = frozenset(node for holders in assignment.tasks.values() for node in holders.replicas)
        self._schedule()

    def on_member(self, member: Member, age_s: float = 0.0) -> None:
        """Take a heartbeat; `age_s`: how old it was when read, if it was written before the router started.

        If two processes have one instance id, the one that started later counts, unless it has fallen silent:
        a clock that was set back must not hide a restarted node for ever.
        """
        now = asyncio.get_running_loop().time()
        known = self._members.get(member.instance_id)
        if known is not None and known.incarnation != member.incarnation and member.started_at_ms < known.started_at_ms:
            silent_s = now - self._heard_at[member.instance_id]
            if silent_s < self._session_timeout_s:
                return
        self._members[member.instance_id] = member
        self._heard_at[member.instance_id] = now - age_s
        self._schedule()

    def on_member_left(self, instance_id: str) -> None:
        """Take a tombstone."""
        if self._members.pop(instance_id, None) is not None:
            del self._heard_at[instance_id]
            self._schedule()

    def heartbeat_age_s(self, instance_id: str) -> float | None:
        """Seconds since the member's last heartbeat; None for an unknown member."""
        heard_at = self._heard_at.get(instance_id)
        return None if heard_at is None else max(0.0, asyncio.get_running_loop().time() - heard_at)

    def is_silent(self, instance_id: str) -> bool:
        """Whether a member's session has ended without a heartbeat; also while the router itself is out of touch."""
        age_s = self.heartbeat_age_s(instance_id)
        return age_s is not None and age_s >= self._session_timeout_s

    def close(self) -> None:
        """Build no more."""
        if self._pending is not None:
            self._pending.cancel()
        self._unread = {"closed"}

    def _schedule(self) -> None:
        if self._pending is not None or self._unread or self._assignment is None:
            return
        loop = asyncio.get_running_loop()
        due_at = max(loop.time(), self._built_at + _REBUILD_PAUSE_S)
        self._pending = loop.call_at(due_at, self._rebuild_or_break)

    def _forget_long_gone(self) -> None:
        """Forget the members that are long gone: nodes that crash may have a new name each time.

        Silence is measured against the newest heartbeat, not our clock: without Kafka no heartbeat arrives.
        """
        newest = max(self._heard_at.values(), default=0.0)
        limit_s = FORGET_AFTER_SESSIONS * self._session_timeout_s
        gone = [
            name
            for name, heard_at in self._heard_at.items()
            if name not in self._named and newest - heard_at >= limit_s
        ]
        for name in gone:
            del self._members[name], self._heard_at[name]

    def _rebuild_or_break(self) -> None:
        try:
            self._rebuild()
        except BaseException as caught:  # noqa: BLE001 - the owner ends the process
            self._on_defect(as_error(caught))

    def _rebuild(self) -> None:
        self._pending = None
        if self._assignment is None:
            return
        self._forget_long_gone()
        self._placements.take(self._members)
        table = compile_table(
            self._assignment,
            self._members,
            self._tables.table,
            rack=self._rack,
            serde=self._serdes,
            placements=self._placements.of(self._assignment.stores),
            version=self._version,
        )
        self._built_at = asyncio.get_running_loop().time()
        if self._tables.publish(table):
            self._on_table(table)
