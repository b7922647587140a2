"""A simulated controller: the real `OwnershipCore` and `encode`, in the order of `OwnershipController`.

`steps` names the places where the simulation may crash or freeze it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from processor.ownership.core import OwnershipCore
from statehouse.assignment import Assignment, AssignmentReader, encode
from statehouse.backoff import Backoff, BackoffPolicy
from statehouse.membership import decode_member
from tests.simulation.checks import Checks, Knowledge
from tests.simulation.kafka import FencedByKafka, Follower, Kafka
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, Process, World, settle

STEPS = ("read", "open", "started", "proposed", "published", "noted")
_TICK_S = 0.1
_TIMEOUT_S = 2.0
_PUBLISHING = BackoffPolicy("publish_assignment", first_s=0.1, longest_s=2.0)


class _Failed(Exception):
    """Kafka could not be reached; whether the request was carried out is not known."""


class SimulatedController(Process):
    """One run of the driver's controller. `at_step(controller, step)` is told of each step as it is reached."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        settings: SimulationSettings,
        name: str,
        at_step: Callable[[SimulatedController, str], None],
    ) -> None:
        super().__init__(world, name, name)
        self._kafka, self._checks, self._settings, self._at_step = kafka, checks, settings, at_step
        self.core = OwnershipCore(settings.ownership, name)
        self.is_fenced = False
        self._records: list[tuple[bytes, bytes | None]] = []
        self._record_at: float | None = None
        self._members: Follower | None = None
        self.producer_epoch: int | None = None
        self._backoff = Backoff(_PUBLISHING)
        self._work = world.task(self._run())

    def kill(self) -> None:
        super().kill()
        self._work.cancel()
        if self._members is not None:
            self._members.close()

    async def _run(self) -> None:
        self.world.note(self.name, "starts")
        try:
            await self._prepare()
            self.core.start(self.world.now)
            await self._step("started")
            await self._loop()
        except FencedByKafka:
            self.is_fenced = True
            self.world.counts["controllers fenced"] += 1
            self.world.note(self.name, "fenced")
            self.is_alive = False
            if self._members is not None:
                self._members.close()

    async def _step(self, step: str) -> None:
        self._at_step(self, step)
        await self.turn()

    async def _prepare(self) -> None:
        self.core.restore(await self._read_assignment())
        self.core.declare(self._settings.stores)
        await self._step("read")
        self._members = Follower(self, self._kafka.members, self._enqueue)
        while not self._members.is_caught_up:
            await self.sleep(_TICK_S)
        self._drain()
        await self._take_over()

    def _enqueue(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        self._record_at = self.world.now
        self._records.append((key, value))

    def _drain(self) -> None:
        records, self._records = self._records, []
        for key, value in records:
            if value is None:
                self.core.left(key.decode(), self.world.now)
            else:
                self.core.heartbeat(decode_member(value), self.world.now)

    async def _read_assignment(self) -> Assignment | None:
        reader = AssignmentReader()
        follower = Follower(self, self._kafka.assignments, lambda key, value, _at: (reader.feed(key, value), None)[1])
        try:
            while not follower.is_caught_up:
                await self.sleep(_TICK_S)
        finally:
            follower.close()
        return reader.current

    async def _take_over(self) -> None:
        while True:
            try:
                self.producer_epoch = await self._request(self._kafka.init_transactions)
            except _Failed:
                await self._back_off()
                continue
            await self._step("open")
            self.core.restore(await self._read_assignment(), self.world.now)
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
        while True:
            self._drain()
            self._note_contact()
            proposed = self.core.tick(self.world.now)
            if proposed is not None:
                await self._publish(proposed)
            await self._forget_long_gone()
            await self.sleep(_TICK_S)

    def _note_contact(self) -> None:
        now = self.world.now
        silence_s = None if self._members is None else self._members.silence_s
        ages = [silence_s, None if self._record_at is None else now - self._record_at]
        age = min((age for age in ages if age is not None), default=0.0)
        if age > self._settings.session_timeout_s / 2:
            self.core.contact_lost()
        else:
            self.core.contact_regained(now)

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
        if self.core.is_superseded_by(await self._read_assignment()):
            self.world.counts["controllers that found a newer one"] += 1
            raise FencedByKafka
        await self._take_over()
        self.core.contact_regained(self.world.now)
