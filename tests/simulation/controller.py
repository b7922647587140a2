"""A simulated controller: the real `OwnershipCore`, `Takeover` and `encode`, in the order of `OwnershipController`.

`steps` names the places where the simulation may crash or freeze it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from processor.ownership.connections import Watches
from processor.ownership.machine.core import OwnershipCore
from processor.ownership.machine.refusals import Sighting
from processor.ownership.machine.takeover import ControllerRecord, Takeover
from processor.ownership.topics.controller_record import decode_controller, encode_controller
from statehouse.contract.assignment import CONTROLLER_KEY, Assignment, AssignmentReader, encode
from statehouse.contract.membership import decode_member
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from tests.simulation.checks import Checks, Knowledge
from tests.simulation.connections import SimulatedDial
from tests.simulation.kafka import FencedByKafka, Follower, Kafka
from tests.simulation.node import SimulatedNode
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, Process, World, epoch_ms, settle

STEPS = ("read", "due", "open", "started", "proposed", "published", "noted")
_TICK_S = 0.1
_TIMEOUT_S = 2.0
_PUBLISHING = BackoffPolicy("publish_assignment", first_s=0.1, longest_s=2.0)


class _Failed(Exception):
    """Kafka could not be reached; whether the request was carried out is not known."""


class SimulatedAssignmentLog:
    """A controller's reader of the assignment topic, as `AssignmentLog`."""

    def __init__(self, process: Process, kafka: Kafka, before: ControllerRecord | None = None) -> None:
        self._process = process
        self._snapshots = AssignmentReader()
        self.takeover = Takeover(before)
        self.follower = Follower(
            process, kafka.assignments, self._feed, confirm_interval_s=0.5, on_contact=self._on_contact
        )

    @property
    def assignment(self) -> Assignment | None:
        return self._snapshots.current

    @property
    def acting(self) -> ControllerRecord | None:
        return self.takeover.acting

    def _feed(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        if key == CONTROLLER_KEY:
            self.takeover.hear(decode_controller(value or b""), self._process.world.now)
        else:
            self._snapshots.feed(key, value)

    def _on_contact(self) -> None:
        if self.follower.contact_at is not None:
            self.takeover.confirm(self.follower.contact_at)


class SimulatedController(Process):
    """A driver's controller or a standby one. `at_step(controller, step)` is called at each step."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        settings: SimulationSettings,
        name: str,
        at_step: Callable[[SimulatedController, str], None],
        nodes: Mapping[str, SimulatedNode],
        *,
        is_standby: bool = False,
    ) -> None:
        super().__init__(world, name, name)
        self._kafka, self._checks, self._settings, self._at_step = kafka, checks, settings, at_step
        self.is_standby = is_standby
        self.core = OwnershipCore(settings.ownership, name)
        self._record = ControllerRecord(name, name, is_standby, 0, settings.ownership)
        self._record_at = 0.0
        self._before: ControllerRecord | None = None
        self._is_stopping = False
        self._records: list[tuple[bytes, bytes | None, int]] = []
        self._heard_at: float | None = None
        self._members: Follower | None = None
        self.producer_epoch: int | None = None
        self._backoff = Backoff(_PUBLISHING)
        self._nodes = nodes
        self._sightings: list[Sighting] = []
        self._watches = Watches(SimulatedDial(self, nodes), self._sightings.append, lambda: world.now, world.task)
        self._refusing: frozenset[str] = frozenset()
        self._work = world.task(self._run())

    def kill(self) -> None:
        super().kill()
        self._watches.follow(())
        self._work.cancel()
        if self._members is not None:
            self._members.close()

    def stop(self) -> None:
        """Have it end; if it acts, it says so."""
        self.world.note(self.name, "is told to stop")
        self._is_stopping = True

    async def _run(self) -> None:
        self.world.note(self.name, "starts")
        if self.is_standby:
            await self._begin_standing_by()
            await self._stand_by()
        else:
            await self._prepare()
        while not self._is_stopping:
            try:
                await self._take_over()
                self._start_core()
                await self._step("started")
                self.core.act()
                await self._loop()
                await self._resign()
            except FencedByKafka:
                self.world.counts["controllers fenced"] += 1
                self.world.note(self.name, "fenced")
                self.producer_epoch = None
                self._watches.follow(())
                await self._stand_by()
        self.kill()

    def _start_core(self) -> None:
        if not self.core.is_started:
            self.core.start(self.world.now)

    async def _step(self, step: str) -> None:
        self._at_step(self, step)
        await self.turn()

    async def _prepare(self) -> None:
        self.core.restore((await self._read_log()).assignment)
        self.core.declare(self._settings.stores)
        await self._step("read")
        await self._follow_members()

    async def _begin_standing_by(self) -> None:
        """Wait for the first controller's settings; all of a run have the same."""
        self.core.stand_by()
        self.core.inherit()
        await self._follow_members()

    async def _follow_members(self) -> None:
        self._members = Follower(self, self._kafka.members, self._enqueue)
        while not self._members.is_caught_up:
            await self.sleep(_TICK_S)
        self._drain()

    async def _stand_by(self) -> None:
        self.core.stand_by()
        watched = SimulatedAssignmentLog(self, self._kafka, self._before)
        try:
            while not self._is_stopping:
                assignment = watched.assignment
                if assignment is not None and assignment.epoch != self.core.assignment.epoch:
                    self.core.restore(assignment, self.world.now)
                self._drain()
                if watched.acting is not None:
                    self._start_core()
                self._note_contact()
                self.core.tick(self.world.now)
                if watched.takeover.is_due(self.world.now) and self.core.is_started:
                    assert watched.follower.contact_at is not None
                    assert watched.acting is not None
                    self._checks.takes_over(self.name, watched.follower.contact_at, watched.acting)
                    self.world.counts["taken over by a standby controller"] += 1
                    self.world.note(self.name, "takes over from {}", watched.acting)
                    await self._step("due")
                    return
                await self.sleep(_TICK_S)
        finally:
            watched.follower.close()

    def _enqueue(self, key: bytes, value: bytes | None, written_at: float) -> None:
        self._heard_at = self.world.now
        self._records.append((key, value, epoch_ms(written_at)))

    def _drain(self) -> None:
        records, self._records = self._records, []
        for key, value, written_at_ms in records:
            if value is None:
                self.core.left(key.decode(), self.world.now)
            else:
                self.core.heartbeat(decode_member(key, value, written_at_ms, epoch_ms(self.world.now)), self.world.now)

    async def _read_log(self) -> SimulatedAssignmentLog:
        read = SimulatedAssignmentLog(self, self._kafka)
        try:
            while not read.follower.is_caught_up:
                await self.sleep(_TICK_S)
        finally:
            read.follower.close()
        return read

    async def _take_over(self) -> None:
        while not self._is_stopping:
            try:
                self.producer_epoch = await self._request(self._kafka.init_transactions)
            except _Failed:
                await self._back_off()
                continue
            await self._step("open")
            read = await self._read_log()
            self.core.restore(read.assignment, self.world.now)
            self._before = read.acting
            return

    async def _back_off(self) -> None:
        await self.sleep(self._backoff.failed())

    async def _request(self, carry_out: Callable[[], Any]) -> Any:
        """Have Kafka do something and wait for its word on it."""
        reply: asyncio.Future[Any] = self.world.loop.create_future()

        def at_broker() -> None:
            try:
                result = carry_out()
            except FencedByKafka:
                fenced = FencedByKafka()
                self.world.net.send(KAFKA, self.machine, lambda: None if reply.done() else reply.set_exception(fenced))
            else:
                self.world.net.send(KAFKA, self.machine, lambda: settle(reply, result))

        self.send(KAFKA, at_broker, may_be_late=True)
        try:
            result = await asyncio.wait_for(reply, _TIMEOUT_S)
        except TimeoutError:
            self.world.counts["publications uncertain"] += 1
            await self.turn()
            raise _Failed from None
        await self.turn()
        return result

    async def _loop(self) -> None:
        while not self._is_stopping:
            self._drain()
            if self.world.now >= self._record_at:
                await self._say_it_acts()
            self._note_contact()
            for sighting in self._sightings:
                self.core.sighted(sighting)
            self._sightings.clear()
            proposed = self.core.tick(self.world.now)
            self._note_refusing()
            if proposed is not None:
                await self._publish(proposed)
            await self._forget_long_gone()
            self._watches.follow(self.core.watched())
            await self.sleep(_TICK_S)

    def _note_refusing(self) -> None:
        refusing = frozenset(self.core.refusing)
        for name in sorted(refusing - self._refusing):
            self.world.counts["taken for gone early"] += 1
            self.world.note(self.name, "takes {} for gone", name)
            incarnation = self.core._sessions._sessions[name].member.incarnation
            self._checks.taken_for_gone(name, incarnation, self._nodes.values())
        self._refusing = refusing

    def _note_contact(self) -> None:
        now = self.world.now
        silence_s = None if self._members is None else self._members.silence_s
        ages = [silence_s, None if self._heard_at is None else now - self._heard_at]
        age = min((age for age in ages if age is not None), default=0.0)
        if age > self._settings.session_timeout_s / 2:
            self.core.contact_lost()
        else:
            self.core.contact_regained(now)

    async def _say_it_acts(self) -> None:
        self._record_at = self.world.now + self._settings.ownership.heartbeat_interval_s
        try:
            await self._write(replace(self._record, heartbeat=self._record.heartbeat + 1))
        except _Failed:
            await self._reopen()

    async def _resign(self) -> None:
        """Say that it stops; whether that arrives is not waited for."""
        if self._record.heartbeat:
            with suppress(_Failed, FencedByKafka):
                await self._write(replace(self._record, heartbeat=self._record.heartbeat + 1, has_stopped=True))
                self.world.counts["controllers stopped"] += 1

    async def _write(self, record: ControllerRecord) -> None:
        self._record = record
        producer_epoch = self.producer_epoch or 0

        def commit() -> None:
            self._kafka.commit(producer_epoch, [encode_controller(record)], self._kafka.assignments)
            self._checks.controller_acts(record)

        await self._request(commit)

    async def _publish(self, proposed: Assignment) -> None:
        # What it knows at the moment of planning is what its plan is to be judged by.
        sessions = self.core._sessions
        knowledge = Knowledge(self.name, sessions.nodes(), self.core._must_wait(self.world.now))
        await self._step("proposed")
        complete, records = encode(self.core.assignment, proposed)
        producer_epoch = self.producer_epoch or 0

        def commit() -> None:
            self._kafka.commit(producer_epoch, records, self._kafka.assignments)
            self._checks.committed(records, knowledge)

        try:
            await self._request(commit)
        except _Failed:
            self.world.note(self.name, "epoch {} not known to be published", proposed.epoch)
            await self._reopen()
            return
        await self._step("published")
        self._backoff.succeeded()
        self.core.published(complete, self.world.now)
        await self._step("noted")

    async def _forget_long_gone(self) -> None:
        gone = self.core.forgettable(self.world.now)
        if not gone:
            return
        producer_epoch, tombstones = self.producer_epoch or 0, [(name.encode(), None) for name in gone]
        try:
            await self._request(lambda: self._kafka.commit(producer_epoch, tombstones, self._kafka.members))
        except _Failed:
            await self._reopen()
            return
        for name in gone:
            self.core.left(name, self.world.now)
        self.world.counts["members forgotten"] += len(gone)

    async def _reopen(self) -> None:
        self.core.contact_lost()
        await self._back_off()
        read = await self._read_log()
        acting = read.acting
        superseded = acting is not None and acting.controller != self.name and acting != self._before
        if superseded or self.core.is_superseded_by(read.assignment):
            self.world.counts["controllers that found a newer one"] += 1
            raise FencedByKafka
        await self._take_over()
        self.core.contact_regained(self.world.now)
