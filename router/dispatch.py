"""Asking replicas until one answers: one deadline, each candidate once a round, as many rounds as help.

What a failure means decides what follows:

- an answer about the request (unknown key form, undecodable value, …) is final and passed through;
- an answer about the replica (restoring, too far behind, overloaded, …) or none at all leads to the next one, as
  ksqlDB does for connection errors and for standbys that are not up to the bound;
- a wrong-owner answer with a newer route leads to that route's hosts at once, before the rest (TiKV's NotLeader);
- an answer that is late is waited for, and once in a lookup the next candidate that is within the bound is asked
  beside it: a hedge. The first good answer counts;
- slow is not dead: where nobody answered, but somebody only ran out of time, they are asked again as long as the
  deadline allows, each that was late with twice the time it had;
- if every failure was of a kind that passes by itself, the candidates are asked once more after a short pause,
  which ends early when a newer table arrives;
- while a new epoch reaches one process after the other, the old active has stepped down and the new one may not know
  yet: once a lookup has met two epochs, they are asked again for some seconds;
- while a replica has yet to reach the position that the caller has seen, and nothing worse was said, they are asked
  again as long as there is time: each such round is a wait at the nodes, which give up a little before the attempt
  does;
- OVERLOADED never leads back to the node that said it;
- what would fail although all of it passes by itself may be held for some seconds (`hold.py`), if that is set.

Hedges, and attempts that follow one that ran out of time, are paid from the retry budget. Where it has nothing left
and no other candidate is well, an attempt goes on beyond its time: a fleet that is slow is not asked twice as much, and
still answers.

When nobody answered, the failure names every candidate with the reason it gave first: a later, more general error
never hides an earlier one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from router.attempts import Attempts, Limits, Outcome
from router.budget import RetryBudget
from router.choice import Standing, ask_order, has_reported, judge
from router.hold import Held, Holds
from router.holder import TableHolder
from router.lateness import Kind
from router.metrics import RouterMetrics
from router.progress import AttemptRecord, Progress
from router.summary import summed_up
from router.table import Node, PartitionRoutes, Replica
from router.turns import Turns
from statehouse.consistency import ANY, Freshness
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.topology import Role
from statehouse.v1 import errors_pb2

_PAUSE_S = 0.1
# How long a lookup waits for the table to reach an epoch that a node has told it of.
_EPOCH_WAIT_S = 1.0
# With less than this left, another attempt would only hide why the earlier ones failed.
_LEAST_ATTEMPT_S = 0.001
# The least that a candidate gets of a short deadline; a node is not called slow for missing less.
_LEAST_SHARE_S = 0.05
NONE_FAILED: Mapping[str, LookupFailure] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Call:
    """What to ask of a partition's replicas.

    Attributes:
        method: of QueryService.
        body: the serialized request, without forwarding.
        is_patient: it may take a while by nature (scans, exact counts): an attempt gets its share of the time
            left instead of the attempt timeout.
        failed_before: nodes that were asked already and must not be again in the first round.

    """

    method: str
    store: str
    partition: int
    body: bytes
    freshness: Freshness = ANY
    is_patient: bool = False
    failed_before: Mapping[str, LookupFailure] = field(default_factory=lambda: NONE_FAILED)

    @property
    def kind(self) -> Kind | None:
        """What its answers are measured as."""
        return None if self.is_patient else (self.store, self.method)


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer, unparsed, and the role the table gives the node."""

    data: bytes
    role: Role


@dataclass(slots=True)
class _Round:
    """One pass over a lookup's candidates; passes are numbered from 1."""

    number: int
    call: Call
    body: bytes
    routes: PartitionRoutes
    deadline: Deadline
    progress: Progress
    asked: set[str]
    queue: deque[Replica]
    under_way: int = 0

    def waits(self, replica: Replica) -> bool:
        """Whether a replica, by its last report, has to wait for the position that the caller has seen."""
        at_least = self.call.freshness.at_least
        return at_least is not None and not has_reported(replica, at_least, self.routes)

    def kind(self, replica: Replica) -> Kind | None:
        """What the replica's answer is measured as, None if it may take any time."""
        return None if self.waits(replica) else self.call.kind

    def record(self, replica: Replica, *, is_hedge: bool) -> AttemptRecord | None:
        """Begin the record of a call, if the caller wants an account of the lookup."""
        if self.progress.attempts is None:
            return None
        record = AttemptRecord(replica, self.number, is_hedge, asyncio.get_running_loop().time())
        self.progress.attempts.append(record)
        return record

    @property
    def unasked(self) -> int:
        """How many are left to ask."""
        return sum(replica.instance_id not in self.asked for replica in self.queue)

    def next(self) -> Replica | None:
        """Return whom to ask next, None if everybody was or the time is up."""
        while self.queue and self.deadline.remaining_s >= _LEAST_ATTEMPT_S:
            replica = self.queue.popleft()
            if replica.instance_id not in self.asked:
                self.asked.add(replica.instance_id)
                return replica
        return None

    def take(self, replica: Replica, outcome: Outcome) -> Answer | None:
        """Return the answer if it is one; else note the failure and where it leads.

        Raises:
            LookupFailure: a failure that no other node can help with.

        """
        if isinstance(outcome, bytes):
            return Answer(outcome, replica.role)
        # The router has found the store in its table: a node that does not know it is an epoch behind.
        if not outcome.elsewhere and outcome.reason is not Reason.UNKNOWN_STORE:
            raise outcome
        self.progress.note(replica, outcome)
        if outcome.route is not None and outcome.route.epoch > self.routes.epoch:
            self.queue.extendleft(reversed(_redirects(outcome.route, self.call.freshness)))
        return None


class Dispatcher:
    """Sends calls to replicas. Lives on the event loop. After `attempt_timeout_s` an attempt may be given up."""

    def __init__(
        self,
        tables: TableHolder,
        attempts: Attempts,
        budget: RetryBudget,
        metrics: RouterMetrics,
        *,
        attempt_timeout_s: float,
        holds: Holds,
    ) -> None:
        self._tables, self._attempts, self._budget, self._metrics = tables, attempts, budget, metrics
        self._holds = holds
        self._attempt_timeout_s = attempt_timeout_s
        self.suspects = attempts.health.suspects
        self._turns = Turns()

    async def dispatch(self, call: Call, deadline: Deadline, progress: Progress | None = None) -> Answer:
        """Return the first answer. A caller that wants to know how it went gives the `progress` to keep.

        Raises:
            LookupFailure: a final one of a node's; NO_REPLICA_AVAILABLE; OVERLOADED, if that is what every
                candidate said; POSITION_NOT_REACHED, if any had yet to reach it; or DEADLINE_EXCEEDED.

        """
        self._budget.lookup(asyncio.get_running_loop().time())
        progress = Progress() if progress is None else progress
        routes = self._tables.current().store(call.store).partition(call.partition)
        for replica in routes.replicas:
            if (earlier := call.failed_before.get(replica.instance_id)) is not None:
                progress.note(replica, earlier)
        if deadline.remaining_s < _LEAST_ATTEMPT_S:
            # It waited for its turn here until its caller has given up: work on it would keep others waiting, too.
            raise self.failure(call, routes, progress, is_late=True)
        skipped = set(call.failed_before)
        held: Held | None = None
        answer: Answer | None = None
        try:
            for number in itertools.count(1):
                table = self._tables.current()
                progress.epochs.add(table.epoch)
                routes = table.store(call.store).partition(call.partition)
                queue = deque(ask_order(routes, call.freshness, self.suspects, self._turns.take(routes)))
                body = call.body + table.forwarding
                answer = await self._run(_Round(number, call, body, routes, deadline, progress, skipped, queue))
                if answer is not None:
                    return answer
                if not progress.goes_on_after(number):
                    held = held or self._hold(call, progress)
                    if held is None or not await held.turn(deadline):
                        break
                if not await self._has_time_for_more(progress, table.epoch, deadline):
                    break
                skipped = progress.overloaded
        finally:
            if held is not None:
                held.end(is_answered=answer is not None)
        raise self.failure(call, routes, progress, is_late=deadline.remaining_s < _LEAST_ATTEMPT_S)

    def _hold(self, call: Call, progress: Progress) -> Held | None:
        """Hold a lookup that would fail, if what it was told passes by itself and there is room."""
        if not progress.passes:
            return None
        place = (call.store, call.partition)
        verdict, window = self._holds.begin(place, asyncio.get_running_loop().time())
        self._metrics.hold(verdict)
        return None if window is None else Held(self._holds, window)

    async def _run(self, round_: _Round) -> Answer | None:
        """Ask each candidate once, those asked already excepted; None if none answered or the time is up."""
        while (replica := round_.next()) is not None:
            kind = round_.kind(replica)
            delay_s = math.inf if kind is None else self._attempts.lateness.hedge_delay_s(kind)
            if kind is None or delay_s >= self._attempt_timeout_s or round_.progress.is_hedged or not round_.queue:
                answer = round_.take(replica, await self._attempt(round_, replica))
            else:
                answer = await self._hedged_attempt(round_, replica, kind, delay_s)
            if answer is not None:
                return answer
        return None

    async def _hedged_attempt(self, round_: _Round, replica: Replica, kind: Kind, delay_s: float) -> Answer | None:
        """Ask a replica and, if its answer is late, another one beside it; return the first answer.

        The first is asked without a task of its own: most lookups are not hedged, and tasks cost more than timers.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        hedges: list[tuple[Replica, asyncio.Task[Outcome]]] = []
        has_won = False

        def send() -> None:
            if (rival := self._rival(round_)) is not None:
                task = loop.create_task(self._attempt(round_, rival, is_hedge=True))
                task.add_done_callback(end_race)
                hedges.append((rival, task))

        def end_race(hedge: asyncio.Task[Outcome]) -> None:
            if is_racing and not hedge.cancelled() and isinstance(hedge.result(), bytes):
                race.reschedule(loop.time())

        is_racing, timer = True, loop.call_later(delay_s, send)
        try:
            try:
                async with asyncio.timeout(None) as race:
                    outcome: Outcome | None = await self._attempt(round_, replica)
            except TimeoutError:
                outcome = None
                self._overtaken(replica, kind, loop.time() - started_at)
            is_racing = False
            answer = None if outcome is None else round_.take(replica, outcome)
            for rival, hedge in hedges:
                if answer is None:
                    answer = round_.take(rival, await hedge)
                    has_won = answer is not None
            return answer
        finally:
            timer.cancel()
            for _, hedge in hedges:
                if hedge.cancel():
                    self._metrics.attempt("CANCELLED")
                self._metrics.hedge("won" if has_won else "lost")

    def _overtaken(self, replica: Replica, kind: Kind, waited_s: float) -> None:
        self._metrics.attempt("CANCELLED")
        if replica.node is not None:
            self._attempts.overtaken(replica.node, kind, waited_s)

    def _rival(self, round_: _Round) -> Replica | None:
        """Return whom to ask beside the one that is late, if anybody and if the retry budget allows it."""
        round_.progress.is_hedged = True
        rival = self._next_that_is_well(round_)
        if rival is None:
            return None
        if not self._budget.hedge(asyncio.get_running_loop().time()):
            self._metrics.hedge("refused")
            round_.progress.refused = "hedge"
            return None
        round_.asked.add(rival.instance_id)
        return rival

    def _next_that_is_well(self, round_: _Round) -> Replica | None:
        """Return the next replica that by all that is known can answer, within the bound and in time."""
        verdicts = judge(round_.routes, round_.call.freshness, self.suspects)
        fit = {each.replica.instance_id for each in verdicts if each.standing is Standing.INCLUDED} - round_.asked
        return next((replica for replica in round_.queue if replica.instance_id in fit), None)

    async def _attempt(self, round_: _Round, replica: Replica, *, is_hedge: bool = False) -> Outcome:
        """Ask one node; return its answer or failure."""
        node, call = replica.node, round_.call
        if node is None:
            return LookupFailure(Reason.UNKNOWN_ADDRESS, "no address")
        timeout_s = self._timeout_s(round_, replica)
        is_lenient = timeout_s < min(_LEAST_SHARE_S, self._attempt_timeout_s)
        # A node waits for a position as long as it is let, and says in time that it has not got there.
        deadline = Deadline.after(timeout_s) if round_.waits(replica) else round_.deadline
        limits = Limits(deadline, timeout_s, partial(self._may_give_up, round_), is_lenient)
        round_.under_way += 1
        record = round_.record(replica, is_hedge=is_hedge)
        outcome: Outcome | None = None
        try:
            outcome = await self._attempts.make(node, call.method, round_.body, limits, kind=round_.kind(replica))
        finally:
            round_.under_way -= 1
            if record is not None:
                record.end(asyncio.get_running_loop().time(), outcome)
        self._metrics.attempt("OK" if isinstance(outcome, bytes) else outcome.reason.name)
        return outcome

    def _may_give_up(self, round_: _Round) -> bool:
        """Whether an attempt whose time has run out may end: what is asked instead is paid from the retry budget.

        With nothing left and nobody who is well, an answer that is late is more likely to come than another one.
        """
        if round_.under_way > 1:
            return True
        is_owed = self._next_that_is_well(round_) is not None
        is_allowed = self._budget.retry(asyncio.get_running_loop().time(), is_owed=is_owed)
        self._metrics.retry(is_allowed=is_allowed)
        if not is_allowed:
            round_.progress.refused = "retry"
        return is_allowed

    def _timeout_s(self, round_: _Round, replica: Replica) -> float:
        remaining_s = round_.deadline.remaining_s
        patience_s = self._attempt_timeout_s * 2.0 ** round_.progress.times_late(replica.instance_id)
        candidates_left = 1 + round_.unasked
        if round_.call.is_patient:
            return max(min(remaining_s, self._attempt_timeout_s), remaining_s / candidates_left)
        # A short deadline is shared out, so that a frozen first candidate leaves the next one its turn; but not
        # into parts in which a healthy node could not answer.
        share_s = max(remaining_s / candidates_left, _LEAST_SHARE_S)
        return min(remaining_s, share_s, patience_s)

    async def _has_time_for_more(self, progress: Progress, epoch: int, deadline: Deadline) -> bool:
        """Pause before the next round; False if there is no time for it then."""
        remaining_s = deadline.remaining_s
        if progress.newest_epoch > epoch:
            await self._tables.wait_for_epoch(progress.newest_epoch, min(_EPOCH_WAIT_S, remaining_s / 2))
        else:
            await self._tables.wait_for_epoch(epoch + 1, min(_PAUSE_S, remaining_s / 2))
        # With less, a node could not wait for the position.
        return deadline.remaining_s >= (_LEAST_ATTEMPT_S if progress.furthest is None else _LEAST_SHARE_S)

    def failure(self, call: Call, routes: PartitionRoutes, progress: Progress, *, is_late: bool) -> LookupFailure:
        """Sum up a lookup that nobody answered."""
        return summed_up(self._tables.table, routes, call.freshness, self.suspects, progress, is_late=is_late)


def _redirects(route: errors_pb2.Route, bound: Freshness) -> list[Replica]:
    """Return the hosts of a newer route as replicas to ask."""
    hosts = [(Role.ACTIVE, route.active)] if route.HasField("active") else []
    if not bound.active_only:
        hosts += [(Role.STANDBY, host) for host in route.standbys]
    return [
        Replica(host.instance_id, role, Node(host.instance_id, host.host, host.port))
        for role, host in hosts
        if host.host and host.port
    ]
