"""The work of the acting controller: plans by the core, publishes, and says at each heartbeat interval that it acts."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from processor.ownership.connections import NodeConnections
from processor.ownership.machine.core import OwnershipCore
from processor.ownership.machine.figures import OwnershipFigures
from processor.ownership.machine.refusals import Seen, Sighting
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.assignment_log import AssignmentLog
from processor.ownership.topics.controller_record import encode_controller
from processor.ownership.topics.members_reader import MembersReader
from processor.ownership.topics.publisher import AssignmentPublisher, FencedError, PublishError
from processor.states.lifecycle import ControllerState
from statehouse.contract.assignment import Assignment, encode
from statehouse.observability.unreadable_records import OnUnreadable, OnUnsigned, UnreadableRecords
from statehouse.runtime.backoff import Backoff, OnPause
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

TICK_S: Final = 0.1
# A plan for the largest fleet takes half a second, and the driver's processor has other work too.
_PLANNING_SHARE: Final = 0.2
_MENDS_EVERY_S: Final = 2.0


class OnPlan(Protocol):
    """Hears of each plan."""

    def __call__(self, took_s: float, /, *, changes: bool) -> None:
        """`took_s`: seconds. `changes`: whether there is an assignment to publish."""


@dataclass(frozen=True, slots=True)
class ControllerCallbacks:
    """What a controller is to call, on its own thread unless said otherwise.

    Attributes:
        on_fatal: once, if it stops for good without a call of `stop`.
        on_rebalance: after it published an assignment with other holders of a task.
        on_pause: at each pause before another attempt to publish.
        on_state: with the state that the controller is in, whenever it may have changed.
        on_plan: after each plan.
        on_early_loss: for each node that is taken for gone before its session timeout.
        on_figures: several times a second with how the fleet stands; with None when this controller acts no longer.
        on_unreadable: on any thread for each record that is skipped, each time that it is read; without it the first
            one of a key is logged.
        on_unsigned: likewise for each record that is taken without a signature.

    """

    on_fatal: Callable[[Exception], None] = lambda _error: None
    on_rebalance: Callable[[], None] = lambda: None
    on_pause: OnPause = lambda _cause: None
    on_state: Callable[[ControllerState], None] = lambda _state: None
    on_plan: OnPlan = lambda _took_s, **_: None
    on_early_loss: Callable[[], None] = lambda: None
    on_figures: Callable[[OwnershipFigures | None], None] = lambda _figures: None
    on_unreadable: OnUnreadable = field(default_factory=lambda: UnreadableRecords().note)
    on_unsigned: OnUnsigned = field(default_factory=lambda: UnreadableRecords().unsigned)


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """What a controller plans by: its core, which the feed tells of members, and its settings."""

    core: OwnershipCore
    members: MembersReader
    settings: OwnershipSettings

    def note_contact(self) -> bool:
        """Tell the core whether Kafka is in contact, and return it."""
        now = time.monotonic()
        in_contact = self.members.silence_s(now) <= self.settings.session_timeout_s / 2
        if in_contact:
            self.core.contact_regained(now)
        else:
            self.core.contact_lost()
        return in_contact


class ActingController:
    """From a takeover until another controller takes over, or the process stops. Only one thread uses it."""

    def __init__(
        self,
        brokers: Brokers | str,
        application_id: str,
        name: str,
        fleet: WatchedFleet,
        *,
        is_standby: bool,
        stop: threading.Event,
        read_log: Callable[[], AssignmentLog],
        own_log: AssignmentLog,
        check: Callable[[], None],
        backoff: Backoff,
        callbacks: ControllerCallbacks,
    ) -> None:
        """Prepare. `read_log` reads the assignment topic to its end, or until `stop` is set.

        `own_log` follows that topic from `run` on. `check` raises what has broken on another thread.
        """
        self._fleet, self._core = fleet, fleet.core
        self._stop, self._read_log, self._check = stop, read_log, check
        self._backoff, self._calls = backoff, callbacks
        self._publisher = AssignmentPublisher(brokers, application_id)
        self._name = name
        host = f"{socket.gethostname()}, process {os.getpid()}"
        self._record = ControllerRecord(name, host, is_standby, 0, fleet.settings)
        self._record_at = 0.0
        self._own_log, self._published_at, self._mend_at = own_log, 0.0, 0.0
        self._signed_as = 0
        self.before: ControllerRecord | None = None
        """The record of the controller that acted before the takeover."""
        self._under_replicated = 0
        self._damped: frozenset[str] = frozenset()
        self._refusing: frozenset[str] = frozenset()
        self._withheld: frozenset[str] = frozenset()
        self._sightings: queue.SimpleQueue[Sighting] = queue.SimpleQueue()
        self._connections: NodeConnections | None = None
        self._broken: Exception | None = None

    def take_over(self) -> bool:
        """Fence the controller before, and read what it has published; retries until that succeeds.

        Returns False if it was stopped first.

        Raises:
            FencedError: a newer controller was faster, or another version has published meanwhile.

        """
        while not self._stop.is_set():
            try:
                self._publisher.open()
            except PublishError as error:
                self._back_off("publisher not open; trying again", error)
                continue
            read = self._read_log()
            if self._stop.is_set():
                break
            strange = read.not_understood() if self._record.is_standby else read.of_newer_format()
            if strange:
                raise FencedError(f"another version has written the record {strange}: upgrade this controller")
            self._core.restore(read.assignment, time.monotonic())
            self._published_at = time.monotonic()
            self.before = read.acting
            return True
        return False

    def run(self) -> None:
        """Plan and publish until stopped, and publish again what the topic has lost.

        Raises:
            FencedError: another controller has taken over.
            ConfigurationError: another controller has published other stores, which don't fit the declared ones.

        """
        self._core.act()
        self._calls.on_state(ControllerState.RUNNING)
        self._own_log.start()
        self._connections = NodeConnections(self._name, self._note_sighting, self._connections_broke)
        self._connections.start()
        heartbeat_s = self._fleet.settings.heartbeat_interval_s
        tick_s = min(TICK_S, heartbeat_s / 4)
        tick_at = time.monotonic()
        while not self._stop.is_set():
            self._check()
            self._fleet.members.drain(self._core, max(0.0, tick_at - time.monotonic()))
            now = time.monotonic()
            if now >= self._record_at:
                self._say_it_acts()
            has_lost = self._take_sightings()
            if now < tick_at and not has_lost:
                continue
            self._calls.on_state(ControllerState.RUNNING if self._fleet.note_contact() else ControllerState.SUSPENDED)
            plans_before = self._core.plans
            proposed = self._core.tick(now)
            took_s = time.monotonic() - now
            if self._core.plans > plans_before:
                self._calls.on_plan(took_s, changes=proposed is not None)
            self._note_damped()
            self._note_early_losses()
            if proposed is not None:
                self._publish(proposed)
            else:
                self._mend()
            self._forget_long_gone(now)
            self._connections.follow(self._core.watched())
            self._calls.on_figures(self._core.figures(self._fleet.members.silence_s(time.monotonic())))
            # Plans for a huge fleet take long, but the pause must not be so long that members seem silent.
            pause_s = min(took_s / _PLANNING_SHARE - took_s, heartbeat_s / 2)
            tick_at = time.monotonic() + max(tick_s, pause_s)

    def resign(self) -> None:
        """Say that it stops, so that a standby controller need not wait for its silence."""
        if self._record.heartbeat == 0:
            return
        self._record = replace(self._record, heartbeat=self._record.heartbeat + 1, has_stopped=True)
        try:
            self._publisher.publish([encode_controller(self._record)])
        except (PublishError, FencedError) as error:
            log.info("the end of this controller is not published", error=str(error))

    def close(self) -> None:
        """Drop the producer, and read no more."""
        if self._connections is not None:
            self._connections.stop()
        self._calls.on_figures(None)
        self._publisher.close()
        self._own_log.stop()

    def _note_sighting(self, sighting: Sighting) -> None:
        """Take what became of a connection, on its thread."""
        self._sightings.put(sighting)
        if sighting.seen is Seen.REFUSED:
            self._fleet.members.wake()

    def _take_sightings(self) -> bool:
        """Hand on what became of connections; return whether a node has ended by that."""
        if self._broken is not None:
            raise self._broken
        lost = [self._core.sighted(self._sightings.get()) for _ in range(self._sightings.qsize())]
        return any(lost)

    def _connections_broke(self, error: Exception) -> None:
        self._broken = error

    def _say_it_acts(self) -> None:
        self._record = replace(self._record, heartbeat=self._record.heartbeat + 1)
        self._record_at = time.monotonic() + self._fleet.settings.heartbeat_interval_s
        try:
            self._publisher.publish([encode_controller(self._record)])
        except PublishError as error:
            self._reopen("controller's record not written; trying again", error)
        else:
            self._backoff.succeeded()

    def _mend(self) -> None:
        """Publish the whole assignment again if the topic doesn't have it as published.

        It was recreated or truncated, or somebody else has written to it: no controller does without fencing this one.
        """
        now = time.monotonic()
        if now < self._mend_at:
            return
        key = self._own_log.unlike(self._core.assignment, self._published_at)
        if key:
            log.error("the assignment topic is not as published: all is published again", key=key)
            reason = f"{key} was not as published"
        elif self._signed_as != self._publisher.signs_as and self._core.assignment.epoch:
            # Unchanged records aren't written again, and theirs would be signed with what others count no more.
            reason = "signed with this controller's certificate"
        else:
            return
        again = self._core.again(reason, self._own_log.newest_epoch())
        # A foreign process that goes on writing must not have us write a whole assignment each time.
        self._mend_at = now + _MENDS_EVERY_S
        self._publish(again, whole=True)

    def _publish(self, proposed: Assignment, *, whole: bool = False) -> None:
        signs_as = self._publisher.signs_as
        complete, records = encode(Assignment() if whole else self._core.assignment, proposed)
        try:
            self._publisher.publish(records)
        except PublishError as error:
            self._reopen("assignment not published; trying again", error, epoch=proposed.epoch)
            return
        self._backoff.succeeded()
        self._published_at = time.monotonic()
        if whole:
            self._signed_as = signs_as
        if complete.tasks != self._core.assignment.tasks:
            self._calls.on_rebalance()
        self._core.published(complete, time.monotonic())
        log.info("assignment published", epoch=complete.epoch, reason=complete.reason)
        self._note_under_replicated()

    def _forget_long_gone(self, now: float) -> None:
        gone = self._core.forgettable(now)
        if not gone:
            return
        try:
            self._publisher.forget_members(gone)
        except PublishError as error:
            self._reopen("records of members that are long gone not deleted; trying again", error)
            return
        for name in gone:
            self._core.left(name, now)
        log.info("forgot members that are long gone", members=gone)

    def _reopen(self, event: str, error: PublishError, **about: object) -> None:
        """Open the publisher again after a failure; until then the controller may be out of contact with Kafka.

        To open it fences every other controller, also a newer one, so look for a newer one first.

        Raises:
            FencedError: another controller has taken over.

        """
        self._core.contact_lost()
        self._calls.on_state(ControllerState.SUSPENDED)
        self._back_off(event, error, **about)
        read = self._read_log()
        if self._is_superseded_by(read.acting) or self._core.is_superseded_by(read.assignment):
            raise FencedError("another controller of this application has taken over meanwhile; only one may publish")
        self.take_over()
        self._core.contact_regained(time.monotonic())
        self._calls.on_state(ControllerState.RUNNING)

    def _is_superseded_by(self, acting: ControllerRecord | None) -> bool:
        """Whether another controller has said since the takeover that it acts."""
        return acting is not None and acting.controller != self._name and acting != self.before

    def _back_off(self, event: str, error: PublishError, **about: object) -> None:
        """Log a failure and wait, longer each time until a publication succeeds."""
        pause_s = self._backoff.failed()
        log.warning(event, error=str(error), in_s=pause_s, **about)
        self._stop.wait(pause_s)

    def _note_damped(self) -> None:
        damped = self._core.damped
        for name in damped.keys() - self._damped:
            log.warning("a node's sessions keep ending: find out why it does not stay", reason=damped[name])
        for name in self._damped - damped.keys():
            log.info("node is no longer held back", node=name)
        self._damped = frozenset(damped)

    def _note_early_losses(self) -> None:
        refusing, withheld = self._core.refusing, self._core.withheld
        for name in refusing.keys() - self._refusing:
            self._calls.on_early_loss()
            log.warning(
                "a node has ended: others become active before its session timeout", node=name, reason=refusing[name]
            )
        for name in withheld - self._withheld:
            log.warning(
                "a node refuses connections, but this happened so often that it keeps its tasks for its session: "
                "find out why nodes end, or raise early_promotions_max",
                node=name,
            )
        self._refusing, self._withheld = frozenset(refusing), withheld

    def _note_under_replicated(self) -> None:
        short = len(self._core.last_plan.under_replicated) if self._core.last_plan is not None else 0
        if short != self._under_replicated:
            self._under_replicated = short
            log.warning(
                "tasks with fewer copies than asked for: add nodes, or lower num_standby_replicas"
                if short
                else "all tasks have the copies asked for",
                tasks=short,
            )
