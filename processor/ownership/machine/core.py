"""The decisions of the ownership controller, without I/O: events and times in, assignments to publish out.

Events are only recorded and `tick` decides, so any number of heartbeats costs one plan. An assignment is in force
after the call of `published`. Until then it is proposed again, each time with a higher epoch, because readers may have
seen a publication that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.figures import OwnershipFigures, PlacedTasks
from processor.ownership.machine.numbering import numbered
from processor.ownership.machine.refusals import NodeAddress, Sighting
from processor.ownership.machine.sessions import MemberSessions
from processor.ownership.planning.model import Plan
from processor.ownership.planning.planner import plan
from processor.ownership.settings import OwnershipSettings
from statehouse.contract import epochs
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import Member
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId

_REASONS_MAX = 8


class OwnershipCore:
    """The state of the controller. Every `now` is in seconds of a monotonic clock, and never goes back.

    Order of calls: `restore`, `declare` or `inherit`, the heartbeats in the members topic, `start`; then any. It plans
    while it acts. Standing by it only follows, so that it knows who lives when it takes over.
    """

    def __init__(self, settings: OwnershipSettings, controller: str = "") -> None:
        """Start without members or tasks. `controller` identifies this run in published assignments."""
        self._settings = settings
        self._controller = controller
        self._sessions = MemberSessions(settings)
        self._declared: tuple[StoreDeclaration, ...] | None = ()
        self._stores: dict[str, StoreSpec] = {}
        self._sub_topologies: dict[int, SubTopology] = {}
        self._tasks: tuple[TaskId, ...] = ()
        self._ephemeral: frozenset[TaskId] = frozenset()
        self._changed_at: dict[TaskId, float] = {}
        self._proposed_epoch = 0
        self._reasons: dict[str, None] = {}
        self._replan_at: float | None = None
        self._fleet_began_at: float | None = None
        self._last_tick: float | None = None
        self._is_in_contact = True
        self._acts = True
        self.is_started = False
        """Whether it counts time."""
        self.assignment = Assignment()
        self.last_plan: Plan | None = None
        self.plans = 0
        """How often it has planned."""
        self._placed: tuple[Assignment, tuple[TaskId, ...], PlacedTasks] = (self.assignment, (), PlacedTasks())

    def restore(self, assignment: Assignment | None, now: float | None = None) -> None:
        """Set the assignment in force, as read from its topic; give `now` if it may have changed lately.

        Raises:
            ConfigurationError: a declared store doesn't fit the assignment.

        """
        # A topic that has lost the assignment doesn't undo it: the nodes still hold what they got by it.
        following = assignment or self.assignment
        if now is not None:
            self._note_hand_overs(following, now)
            if following.epoch not in {self.assignment.epoch, epochs.following(self.assignment.epoch)}:
                # The epochs between may have had hand-overs that don't show any more.
                self._changed_at |= dict.fromkeys(following.tasks_written_after(self.assignment.epoch), now)
        self.assignment = following
        self._proposed_epoch = epochs.newest(self._proposed_epoch, self.assignment.epoch)
        self._number()

    def stand_by(self) -> None:
        """Plan nothing until `act`; another controller does."""
        self._acts = False

    def act(self) -> None:
        """Plan from now on."""
        if not self._acts:
            self._acts = True
            self._note("another controller took over")

    def is_superseded_by(self, assignment: Assignment | None) -> bool:
        """Whether another controller has published since this one last read the topic; that one is then newer."""
        return (
            assignment is not None
            and epochs.is_newer(assignment.epoch, self.assignment.epoch)
            and assignment.controller != self._controller
        )

    def declare(self, stores: Iterable[StoreDeclaration]) -> None:
        """Declare all stores of the application.

        Raises:
            ConfigurationError: the stores don't fit together, or a published store has another partition count.

        """
        self._declared = tuple(stores)
        self._number()

    def inherit(self) -> None:
        """Take the stores of the assignment in force as declared, now and whenever another one is restored."""
        self._declared = None
        self._number()

    def _number(self) -> None:
        published = self.assignment
        if self._declared is None:
            self._stores, self._sub_topologies = dict(published.stores), dict(published.sub_topologies)
        else:
            self._stores, self._sub_topologies = numbered(self._declared, published.stores, published.sub_topologies)
        by_number: dict[int, tuple[str, ...]] = {}
        for spec in self._stores.values():
            if spec.is_global:
                continue
            by_number[spec.sub_topology] = (*by_number.get(spec.sub_topology, ()), spec.name)
        self._tasks = tuple(
            task for number, sub in sorted(self._sub_topologies.items()) if number in by_number for task in sub.tasks
        )
        ephemeral = {spec.sub_topology for spec in self._stores.values() if spec.ephemeral}
        self._ephemeral = frozenset(task for task in self._tasks if task.sub_topology in ephemeral)
        self._sessions.use_stores(by_number)
        if self._is_topology_new():
            self._note("topology declared")

    def _is_topology_new(self) -> bool:
        published = self.assignment
        return self._stores != dict(published.stores) or self._sub_topologies != dict(published.sub_topologies)

    def start(self, now: float) -> None:
        """Start to count time; call it when both topics have been read to their ends."""
        self.is_started = True
        holders = {node for task in self.assignment.tasks.values() for node in task.replicas}
        self._sessions.start(now, holders)
        # The times of the last hand-overs aren't known: treat all as recent.
        self._changed_at = dict.fromkeys(self._tasks, now)
        self._last_tick = now
        self._note("controller started")

    def heartbeat(self, member: Member, now: float) -> None:
        """Record a heartbeat."""
        was_empty = not self._sessions.has_live
        change = self._sessions.hear(member, now, self.assignment.epoch)
        if was_empty and self._sessions.has_live:
            self._fleet_began_at = now
        if change is not None and self.is_started:  # those before the start change nothing
            self._note(change)

    def sighted(self, sighting: Sighting) -> bool:
        """Record what became of a connection to a member's address; return whether `tick` has something to do now."""
        return self._sessions.sighted(sighting)

    def watched(self) -> frozenset[NodeAddress]:
        """Return the active nodes' addresses; `sighted` is to be called with what becomes of connections to them."""
        if not self.is_started or not self._acts:
            return frozenset()
        return self._sessions.watched({holders.active or "" for holders in self.assignment.tasks.values()})

    def left(self, instance_id: str, now: float) -> None:
        """Record the tombstone of a member."""
        change = self._sessions.forget(instance_id, now)
        if change is not None:
            self._note(change)

    def forgettable(self, now: float) -> list[str]:
        """Return members whose records may be deleted: long gone, and not in the assignment.

        Each run of a dynamic member leaves its own record behind, unless it left properly. If such a member comes back
        at this moment, nothing is lost: its next heartbeat makes it a member again.
        """
        if not self.is_started or not self._is_in_contact or not self._acts:
            return []
        gone = self._sessions.long_gone(now)
        if not gone:
            return []
        named = {node for holders in self.assignment.tasks.values() for node in holders.replicas}
        return [name for name in gone if name not in named]

    def contact_lost(self) -> None:
        """Contact with Kafka is lost: no member times out, and nothing is planned."""
        self._is_in_contact = False

    def contact_regained(self, now: float) -> None:
        """Contact is back: every member gets a full session timeout for its next heartbeat."""
        if not self._is_in_contact:
            self._is_in_contact = True
            self._sessions.grant_full_session(now)
            self._last_tick = now

    def tick(self, now: float) -> Assignment | None:
        """Advance time; return an assignment to publish, or None if nothing changes.

        Call it at least once per heartbeat interval; a longer gap is treated as a pause of this process.
        """
        if not self.is_started:
            return None
        paused = now - (now if self._last_tick is None else self._last_tick) - self._settings.heartbeat_interval_s
        self._last_tick = now
        if paused > 0:
            # Heartbeats that came during the pause are not read yet.
            self._sessions.skip_time(paused, now)
        if not self._is_in_contact:
            return None
        for event in self._sessions.expire(now):
            self._note(event)
        if not self._acts:
            self._reasons.clear()
            return None
        if self._replan_at is not None and now >= self._replan_at:
            self._note("hand-over completed")
        if not self._reasons:
            return None
        if self._must_wait(now):
            return self._proposal(self._unplanned()) if self._is_topology_new() else None
        return self._planned(now)

    def published(self, assignment: Assignment, now: float) -> None:
        """Record that a proposed assignment is in force."""
        self._note_hand_overs(assignment, now)
        self.assignment = assignment
        self._replan_at = self._deferred_until()
        # Moves that waited for this step may be possible now; a plan without changes publishes nothing.
        self._reasons = {f"follows epoch {assignment.epoch}": None}

    def again(self, reason: str, newest_epoch: int) -> Assignment:
        """Return the assignment in force under a new epoch, to be published whole: its topic isn't as published.

        `newest_epoch`: of the assignments in the topic; it may be of one that this controller hasn't published.
        """
        self._proposed_epoch = epochs.newest(self._proposed_epoch, newest_epoch)
        self._note(reason)
        return self._proposal(self._unplanned())

    def _note_hand_overs(self, following: Assignment, now: float) -> None:
        """Remember when tasks got other or more holders: replaced copies linger from then on."""
        for task, holders in following.tasks.items():
            was = self.assignment.tasks.get(task, TaskAssignment())
            further = set(holders.replicas) - set(was.replicas) or set(holders.standbys) - set(was.standbys)
            if was.active != holders.active or further:
                self._changed_at[task] = now

    @property
    def damped(self) -> Mapping[str, str]:
        """Members that get nothing new because their sessions keep ending -> the reason."""
        return self._sessions.damped

    @property
    def refusing(self) -> Mapping[str, str]:
        """Members that are taken for gone before their sessions end -> why, without their names."""
        return self._sessions.refusing

    @property
    def withheld(self) -> frozenset[str]:
        """Members that would be, if that hadn't happened so often of late."""
        return self._sessions.withheld

    def figures(self, kafka_silence_s: float) -> OwnershipFigures:
        """Return how the fleet stands. The tasks are counted again only when the assignment has changed."""
        assignment, tasks, placed = self._placed
        if assignment is not self.assignment or tasks is not self._tasks:
            placed = PlacedTasks.of(self.assignment, self._tasks)
            self._placed = (self.assignment, self._tasks, placed)
        return OwnershipFigures(
            epoch=self.assignment.epoch,
            live_nodes=self._sessions.live,
            damped_nodes=len(self._sessions.damped),
            tasks=len(self._tasks),
            placed=placed,
            under_replicated=0 if self.last_plan is None else len(self.last_plan.under_replicated),
            kafka_silence_s=kafka_silence_s,
        )

    def _must_wait(self, now: float) -> bool:
        """Whether it is too early to plan.

        After a restart, wait for the members of the assignment: a plan without members that were just not read yet
        would move their tasks for nothing. When a fleet starts, its first node waits for the others: otherwise it
        would get all tasks.
        """
        if self._sessions.awaited() or not self._sessions.has_live:
            return True
        began = self._fleet_began_at
        return began is not None and now - began < self._settings.initial_rebalance_delay_s

    def _unplanned(self) -> Mapping[TaskId, TaskAssignment]:
        """Return the tasks with their present holders, new ones without: a new topology is published before placed."""
        return {task: self.assignment.tasks.get(task, TaskAssignment()) for task in self._tasks}

    def _planned(self, now: float) -> Assignment | None:
        linger = self._settings.linger_s
        lingering = {task for task, at in self._changed_at.items() if now - at < linger}
        made = plan(
            self._tasks,
            self._sessions.nodes(),
            self._unplanned(),
            self._settings.planner,
            lingering,
            self._ephemeral,
        )
        self.last_plan = made
        self.plans += 1
        if made.tasks == self._unplanned() and not self._is_topology_new():
            self._reasons.clear()
            self._replan_at = self._deferred_until()
            return None
        return self._proposal(made.tasks)

    def _deferred_until(self) -> float | None:
        """Return when the first lingering copy may be dropped."""
        deferred = self.last_plan.deferred if self.last_plan is not None else ()
        started = [self._changed_at[task] for task in deferred if task in self._changed_at]
        return min(started) + self._settings.linger_s if started else None

    def _proposal(self, tasks: Mapping[TaskId, TaskAssignment]) -> Assignment:
        # Nodes may act on an epoch that the log has no more.
        self._proposed_epoch = epochs.following(self._proposed_epoch, self._sessions.epochs())
        words = list(self._reasons)
        more = f" and {len(words) - _REASONS_MAX} more" if len(words) > _REASONS_MAX else ""
        return Assignment(
            self._proposed_epoch,
            "; ".join(words[:_REASONS_MAX]) + more,
            self._controller,
            MappingProxyType(self._stores),
            MappingProxyType(self._sub_topologies),
            MappingProxyType(dict(tasks)),
        )

    def _note(self, reason: str) -> None:
        self._reasons[reason] = None
