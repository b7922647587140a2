"""Sessions: decides from heartbeats and time which members are live and which tasks each of them holds.

Membership is static as in KIP-345: a member that is back with its instance id within the session timeout is the same
member, and its earlier reports stay valid until it has reopened its state or the timeout has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from processor.ownership.machine.damping import Damping
from processor.ownership.machine.refusals import EarlyBudget, NodeAddress, Refusals, Sighting
from processor.ownership.planning.model import NodeView, Readiness, ReplicaView, readiness_of
from processor.ownership.settings import OwnershipSettings
from statehouse.contract.epochs import is_newer
from statehouse.contract.membership import (
    FORGET_AFTER_SESSIONS,
    LEAVING_STATES,
    Member,
    NodeState,
    ReplicaReport,
    TaskState,
    target,
)
from statehouse.contract.topology import Role, TaskId

StoresOf = Mapping[int, tuple[str, ...]]
"""Store names by sub-topology."""
_WATCHED_MAX = 1_000


@dataclass(slots=True)
class MemberSession:
    """A member and its last report."""

    member: Member
    heard_at: float
    is_live: bool
    """Whether it counts. A member from the topic's past counts only after a new heartbeat, or if it held a task."""
    is_confirmed: bool = False
    """Whether this controller has received a heartbeat of it since its start."""
    since_epoch: int = 0
    """The epoch in force when it came back from silence. Before it knows that epoch, its heartbeats may arrive while
    it can't read from Kafka, so its replicas don't count as restored."""
    is_witness: bool = True
    """Whether its reported end offsets count; a lost member's do, so that a stuck replica can't look fresh."""
    views: dict[TaskId, ReplicaView] = field(default_factory=dict)
    before_bounce: dict[TaskId, ReplicaView] = field(default_factory=dict)
    bounce_ends_at: float = 0.0
    refusals: Refusals = field(default_factory=Refusals)
    """Of this process."""
    refuses: str = ""
    """Why the process is taken for gone though its session lasts; empty if it isn't."""
    heard_again_at: float | None = None
    """When it was heard of first since it is."""
    is_believed: bool = True
    """Whether refusals of its address count: not if it was heard of after they had."""
    is_withheld: bool = False
    """Whether it would be taken for gone if the budget weren't spent."""

    @property
    def address(self) -> NodeAddress:
        """The process, and where its heartbeats say that it listens."""
        return NodeAddress(self.member.instance_id, self.member.incarnation, self.member.host, self.member.port)

    @property
    def is_judged(self) -> bool:
        """Whether refused connections would mean that the process is gone.

        One that leaves hands its tasks over. One that is to be back soon has said so: nothing is to move meanwhile.
        """
        may_leave = self.member.state in LEAVING_STATES or self.member.returns
        return self.is_live and self.is_confirmed and self.is_believed and not (self.refuses or may_leave)


class MemberSessions:
    """All members. Every `now` is in seconds of a monotonic clock."""

    def __init__(self, settings: OwnershipSettings) -> None:
        """Start without members."""
        self._settings = settings
        self._sessions: dict[str, MemberSession] = {}
        self._damping = Damping(settings)
        self._early = EarlyBudget(settings.early_promotions_max, settings.flap_limit, settings.flap_window_s)
        self._stores: StoresOf = {}
        self._holders: dict[TaskId, set[str]] = {}
        self._started = False

    def use_stores(self, stores: StoresOf) -> None:
        """Set the stores whose lags are summed for a task."""
        self._stores = stores
        self._measure_all()

    def start(self, now: float, holders: Iterable[str]) -> None:
        """Start to count time. Members of the assignment in force get a full session timeout for a heartbeat."""
        self._started = True
        held = set(holders)
        for session in self._sessions.values():
            session.heard_at = now
            session.is_live = session.is_witness = session.member.instance_id in held
        self._measure_all()

    def awaited(self) -> list[str]:
        """Live members without a heartbeat since the start."""
        return [name for name, session in self._sessions.items() if session.is_live and not session.is_confirmed]

    def grant_full_session(self, now: float) -> None:
        """Restart the session timeout of all members, because this controller was out of contact."""
        for session in self._sessions.values():
            session.heard_at = now
            session.refusals.doubt(now)
            if session.before_bounce:
                session.bounce_ends_at = now + self._settings.session_timeout_s

    def skip_time(self, seconds: float, now: float) -> None:
        """Don't count a time in which this process wasn't running, up to now."""
        for session in self._sessions.values():
            session.heard_at += seconds
            session.refusals.doubt(now)
            session.bounce_ends_at += seconds

    def hear(self, member: Member, now: float, epoch: int = 0) -> str | None:
        """Record a heartbeat in the given epoch; return in words its change for the planner, None for no change."""
        name = member.instance_id
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = MemberSession(member, now, is_live=False)
        elif session.member.incarnation == member.incarnation:
            if member.heartbeat == session.member.heartbeat:
                return None  # read twice; it proves nothing about now
        elif member.incarnation_order < session.member.incarnation_order and session.is_live:
            # The newer of two processes counts; but not one that wrote once, and claimed to be the newest.
            return None
        elif session.is_live:
            self._bounce(session, now)
            self._damping.ended(name, now)
            self._damping.began(name, now)
        if member.state == NodeState.NOT_RUNNING:
            return self.forget(name, now)
        is_back = self._comes_back(session, member, now)
        joins = self._started and not session.is_live
        if joins:
            self._damping.began(name, now)
            session.since_epoch = epoch
        session.heard_at = now
        session.is_live = session.is_confirmed = self._started
        session.is_witness = True
        change = self._take(session, member)
        if is_back:
            return f"{name} is back"
        return f"{name} joined" if joins else change

    def _comes_back(self, session: MemberSession, member: Member, now: float) -> bool:
        """Take a heartbeat as a sign of life. Return whether its process, or the one before, was taken for gone."""
        was_gone = bool(session.refuses)
        if session.member.incarnation != member.incarnation:
            session.refusals, session.refuses, session.is_believed = Refusals(), "", True
        elif was_gone and session.heard_again_at is None:
            session.heard_again_at = now  # this one may have been on its way
        elif was_gone and now - (session.heard_again_at or now) >= self._settings.heartbeat_interval_s / 2:
            session.refuses, session.is_believed = "", False  # it lives, and something else refuses in its place
        session.refusals.doubt(now)
        return was_gone and not session.refuses

    def _bounce(self, session: MemberSession, now: float) -> None:
        """Replace a process by a newer one of the same name; the old one's reports stay valid for now (KIP-345)."""
        if session.member.state in LEAVING_STATES or session.refuses:
            return
        timeout = self._settings.session_timeout_s
        if not session.before_bounce:
            session.bounce_ends_at = session.heard_at + timeout
        session.before_bounce = dict(self._views(session)) if now < session.bounce_ends_at else {}

    def _take(self, session: MemberSession, member: Member) -> str | None:
        """Record the content of a heartbeat; return in words its change for the planner, None for no change."""
        before, old = session.views, session.member
        session.member = member
        for task in old.replicas.keys() - member.replicas.keys():
            self._holders[task].discard(member.instance_id)
        for task in member.replicas:
            self._holders.setdefault(task, set()).add(member.instance_id)
        self._measure(session)
        if (member.state in LEAVING_STATES) != (old.state in LEAVING_STATES):
            return f"{member.instance_id} is {member.state}"
        if member.rack != old.rack:
            return f"{member.instance_id} is in rack {member.rack}"
        if member.capacity != old.capacity:
            return f"{member.instance_id} has capacity {member.capacity}"
        limit = self._settings.planner.acceptable_recovery_lag
        for task in before.keys() | session.views.keys():
            now, then = readiness_of(session.views.get(task), limit), readiness_of(before.get(task), limit)
            if now is not then:
                words = {Readiness.CAUGHT_UP: "has caught up with", Readiness.NOTHING: "has lost"}
                return f"{member.instance_id} {words.get(now, 'reports a change of')} {task}"
        return None

    def forget(self, name: str, now: float) -> str | None:
        """Remove a member that left; return that in words if the member counted."""
        session = self._sessions.pop(name, None)
        if session is None:
            return None
        for task in session.member.replicas:
            self._holders.get(task, set()).discard(name)
        if not session.is_live:
            return None
        self._damping.ended(name, now)
        return f"{name} left"

    def expire(self, now: float) -> list[str]:
        """End expired sessions, and release members held back for long enough; return the changes, in words.

        A process that has ended before is no longer taken for able to be active. It keeps its place until its session
        ends: a copy is built elsewhere only for one that doesn't come back.
        """
        events = []
        for name, session in self._sessions.items():
            if session.is_live and now - session.heard_at >= self._settings.session_timeout_s:
                session.is_live, session.before_bounce, session.refuses = False, {}, ""
                self._damping.ended(name, now)
                events.append(f"{name} was not heard of for {self._settings.session_timeout_s:g} s")
            elif session.is_judged and session.refusals.prove_end:
                session.is_withheld = not self._early.take(name, now)
                if not session.is_withheld:
                    where = target(session.member.host, session.member.port)
                    session.refuses = f"refuses connections at {where}"
                    session.heard_again_at, session.before_bounce = None, {}
                    events.append(f"{name} {session.refuses}")
            elif session.before_bounce and now >= session.bounce_ends_at:
                if self._views(session) != session.views:
                    events.append(f"{name} restarted and has not reopened all its state within the session timeout")
                session.before_bounce = {}
        return events + self._damping.pass_time(now)

    def watched(self, names: Iterable[str]) -> frozenset[NodeAddress]:
        """Return where to see whether these members have ended early; bounded, as each costs a connection."""
        if not self._settings.early_promotions_max:
            return frozenset()
        sessions = (self._sessions[name] for name in sorted(names) if name in self._sessions)
        return frozenset(islice((session.address for session in sessions if session.is_judged), _WATCHED_MAX))

    def sighted(self, sighting: Sighting) -> bool:
        """Take what became of a connection to a member; of a process that was replaced it says nothing.

        Returns whether the member has ended by all that is known.
        """
        session = self._sessions.get(sighting.of.name)
        if session is None or session.address != sighting.of:
            return False
        session.refusals.see(sighting.seen, sighting.at)
        return session.is_judged and session.refusals.prove_end

    @property
    def refusing(self) -> Mapping[str, str]:
        """Members that are taken for gone before their sessions end -> why, without their names."""
        return {name: session.refuses for name, session in self._sessions.items() if session.refuses}

    @property
    def withheld(self) -> frozenset[str]:
        """Members that would be, if that hadn't happened so often of late."""
        return frozenset(
            name
            for name, each in self._sessions.items()
            if each.is_withheld and each.is_judged and each.refusals.prove_end
        )

    def long_gone(self, now: float) -> list[str]:
        """Return the members that have been silent for so long that they can be forgotten."""
        limit_s = FORGET_AFTER_SESSIONS * self._settings.session_timeout_s
        return [
            name
            for name, session in self._sessions.items()
            if not session.is_live and now - session.heard_at >= limit_s
        ]

    @property
    def damped(self) -> Mapping[str, str]:
        """Members that get nothing new because their sessions keep ending -> the reason."""
        return self._damping.damped

    def epochs(self) -> set[int]:
        """Return the epochs that live members say they act on."""
        return {session.member.epoch for session in self._sessions.values() if session.is_live and session.member.epoch}

    @property
    def has_live(self) -> bool:
        """Whether any member is live."""
        return any(session.is_live for session in self._sessions.values())

    @property
    def live(self) -> int:
        """How many members are live."""
        return sum(1 for session in self._sessions.values() if session.is_live)

    def nodes(self) -> dict[str, NodeView]:
        """Return the live members as the planner sees them."""
        damped = self.damped
        return {
            name: NodeView(
                session.member.rack,
                self._views(session),
                session.member.state in LEAVING_STATES,
                damped=damped.get(name, ""),
                capacity=session.member.capacity,
                refuses=session.refuses,
            )
            for name, session in self._sessions.items()
            if session.is_live
        }

    def _views(self, session: MemberSession) -> Mapping[TaskId, ReplicaView]:
        """Return a member's replicas; after a restart also the old ones that it has neither reopened nor lost.

        None of a process that has ended is restored.
        """
        if session.refuses:
            return dict.fromkeys(session.views, ReplicaView(restored=False))
        if not session.before_bounce:
            return session.views
        views = dict(session.views)
        for task, view in session.before_bounce.items():
            report = session.member.replicas.get(task)
            if report is None or not (report.is_restored or report.state == TaskState.ERROR):
                views[task] = view
        return views

    def _measure_all(self) -> None:
        for session in self._sessions.values():
            self._measure(session)

    def _measure(self, session: MemberSession) -> None:
        """Measure a report when it arrives, against the largest end offsets reported so far.

        Later reports of other members don't change the result: their ends are newer than the positions in this report,
        and two healthy replicas of a busy partition would look behind in turn.
        """
        session.views = dict(self._measured(session))

    def _measured(self, session: MemberSession) -> Iterator[tuple[TaskId, ReplicaView]]:
        hears = not is_newer(session.since_epoch, session.member.epoch)
        for task, report in session.member.replicas.items():
            if report.state != TaskState.ERROR:
                restored = hears and report.is_restored and report.role is not Role.DORMANT
                yield task, ReplicaView(restored, self._lag(task, report))

    def _lag(self, task: TaskId, report: ReplicaReport) -> int | None:
        """Return how many records a replica is behind, summed over its stores; None if any part is unknown."""
        stores = self._stores.get(task.sub_topology, ())
        lag = 0
        for store in stores:
            at = report.stores.get(store)
            end = self._end(task, store)
            if at is None or at.position is None or end is None:
                return None
            lag += max(0, end - at.position)
        return lag if stores else None

    def _end(self, task: TaskId, store: str) -> int | None:
        """Return the largest end offset that any member reports for a store partition."""
        ends = []
        for name in self._holders.get(task, ()):
            session = self._sessions[name]
            report = session.member.replicas.get(task)
            if session.is_witness and report is not None and store in report.stores:
                end = report.stores[store].end_offset
                if end is not None:
                    ends.append(end)
        return max(ends, default=None)
