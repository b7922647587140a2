"""Asking replicas until one answers: one deadline, each candidate once a round, as many rounds as help.

What a failure means decides what follows:

- An answer about the request (unknown key form, undecodable value, …) is final and passed through.
- An answer about the replica (restoring, too far behind, overloaded, …), or no answer, leads to the next candidate.
  ksqlDB does the same for connection errors and for standbys beyond the bound.
- A wrong-owner answer with a newer route leads to that route's hosts immediately, before the rest (TiKV's NotLeader).
- If an answer is late, the lookup waits on and asks the next candidate within the bound, too, but only once: a hedge.
  The first good answer counts.
- Slow is not dead: if nobody answered and a candidate ran out of time, the candidates are asked again as long as the
  deadline allows. One that was late gets twice the time it had.
- If all failures pass on their own, the candidates are asked once more after a short pause, which ends early when a
  newer table arrives.
- A replica that exceeds the caller's lag or staleness is asked once more, too: after it has thawed or reconnected to
  Kafka, it exceeds the bound until Kafka has told it the log's end.
- Rounds in which a candidate ran out of time don't count towards these limits: a node that thaws has said nothing yet.
- A new epoch reaches one process after the other: the old active may have stepped down before the new one knows. So a
  lookup that has met two epochs asks again for some seconds.
- While a replica has not reached the caller's position, or batch, and no failure is worse, the candidates are asked
  again as long as there is time. In each such round the nodes wait, and give up a little before the attempt does.
  Lookups that want as much of a position wait along with the first one (`joined_waits.py`).
- A node that answered OVERLOADED is not asked again.
- A lookup that would fail, though all its failures pass on their own, is held for some seconds (`hold.py`).

Hedges, and attempts that follow one that ran out of time, are paid from the retry budget. If it has nothing left and
no other candidate is well, an attempt goes on beyond its time: a slow fleet is not asked twice as much, and still
answers.

When nobody answered, the failure names every candidate with the reason it gave first: a later, more general error
never hides an earlier one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from router.calls.attempts import AttemptLimits, Attempts, CallOutcome
from router.choice.answer_times import CallKind
from router.choice.attempt_log import AttemptLog, AttemptRecord
from router.choice.budget import RetryBudget
from router.choice.candidates import Eligibility, ask_order, has_reported, judge
from router.choice.failure_summary import summed_up
from router.choice.hold import HeldLookup, Holds
from router.choice.round_robin import RoundRobin
from router.fleet.current_table import CurrentTable
from router.fleet.table import PartitionRoutes, RoutedNode, RoutedReplica
from router.lookups.joined_waits import JoinedWaits
from router.lookups.stamps import checked
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.consistency import ANY, Freshness, not_reached
from statehouse.contract.epochs import is_newer
from statehouse.contract.topology import Role
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline
from statehouse.runtime.background import BackgroundWork
from statehouse.v1 import errors_pb2

_PAUSE_S = 0.1
# How long a lookup waits for the table to reach an epoch that a node has named.
_EPOCH_WAIT_S = 1.0
# In less time another attempt would only hide why the earlier ones failed.
_LEAST_ATTEMPT_S = 0.001
# A candidate's least share of a short deadline; to miss a shorter time does not count against a node.
_LEAST_SHARE_S = 0.05
# A lookup that waits for a position asks again each time its attempt is over: at first soon, then after so many times
# the attempt timeout. A thousand that wait for what never comes would else keep router and node busy.
_LONGEST_WAIT = 4
NONE_FAILED: Mapping[str, LookupFailure] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make to a partition's replicas.

    Attributes:
        method: of QueryService.
        body: the serialized request, without forwarding.
        is_patient: it may take long (scans, exact counts): an attempt gets its share of the time left if that is
            longer than the attempt timeout.
        is_page: its answer is a page, whose entries come with the bytes by which they are in order.
        failed_before: nodes that were asked already and must not be asked again in the first round.

    """

    method: str
    store: str
    partition: int
    body: bytes
    freshness: Freshness = ANY
    is_patient: bool = False
    is_page: bool = False
    failed_before: Mapping[str, LookupFailure] = field(default_factory=lambda: NONE_FAILED)

    @property
    def kind(self) -> CallKind | None:
        """The kind of call for the answer times."""
        return None if self.is_patient else (self.store, self.method)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
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
    attempt_log: AttemptLog
    asked: set[str]
    queue: deque[RoutedReplica]
    handed: HandedLookup | None = None
    under_way: int = 0

    def waits(self, replica: RoutedReplica) -> bool:
        """Whether a replica, by its last report, must wait to reach the caller's position."""
        at_least = self.call.freshness.at_least
        return at_least is not None and not has_reported(replica, at_least, self.routes)

    def may_be_late(self, replica: RoutedReplica) -> bool:
        """Whether a replica that is well may wait: for a position, or for a batch, which no report names."""
        return self.call.freshness.moment is not None or self.waits(replica)

    def behind(self, replica: RoutedReplica) -> LookupFailure | None:
        """Return what is known of the position of a replica that must wait; None if it is to be asked alone.

        The calls of an explained lookup are its own.
        """
        if self.attempt_log.is_explained or not self.waits(replica):
            return None
        said = self.attempt_log.latest.get(replica.instance_id)
        if said is None:
            return not_reached(replica.position, self.wanted)
        return said if said.reason is Reason.POSITION_NOT_REACHED else None

    @property
    def wanted(self) -> int:
        """The position that the caller wants of this partition."""
        at_least = self.call.freshness.at_least
        return 0 if at_least is None else at_least.position(self.call.store, self.call.partition)

    def sent_at(self, replica: RoutedReplica, now: float) -> float:
        """When the replica was asked: before the round, or now."""
        return self.handed.sent_at if self.handed is not None and _was_asked(replica, self.handed) else now

    def take_handed(self, replica: RoutedReplica) -> HandedLookup | None:
        """Return the call that was made to a replica before the round, once."""
        if self.handed is None or not _was_asked(replica, self.handed):
            return None
        handed, self.handed = self.handed, None
        return handed

    def kind(self, replica: RoutedReplica) -> CallKind | None:
        """The kind of call for the answer times; None if the replica may take any time."""
        moment = self.call.freshness.moment
        may_take_long = self.waits(replica) or (moment is not None and moment.may_wait)
        return None if may_take_long else self.call.kind

    def record(self, replica: RoutedReplica, *, is_hedge: bool) -> AttemptRecord | None:
        """Return the record of a call, if they are recorded."""
        if not (self.attempt_log.is_explained or self.attempt_log.is_traced):
            return None
        return AttemptRecord(replica, self.number, is_hedge, asyncio.get_running_loop().time())

    @property
    def unasked(self) -> int:
        """How many candidates are left to ask."""
        return sum(replica.instance_id not in self.asked for replica in self.queue)

    def next(self) -> RoutedReplica | None:
        """Return the next replica to ask; None if all were asked or the time is up."""
        while self.queue and self.deadline.remaining_s >= _LEAST_ATTEMPT_S:
            replica = self.queue.popleft()
            if replica.instance_id not in self.asked:
                self.asked.add(replica.instance_id)
                return replica
        return None

    def take(self, replica: RoutedReplica, outcome: CallOutcome) -> NodeAnswer | None:
        """Return the answer; for a failure note it and the route that it gives, and return None.

        Raises:
            LookupFailure: a failure that no other node can help with.

        """
        if isinstance(outcome, bytes):
            return NodeAnswer(outcome, replica.role)
        # The router's table has the store, so a node that does not know it is an epoch behind.
        if not outcome.elsewhere and outcome.reason is not Reason.UNKNOWN_STORE:
            raise outcome
        self.attempt_log.note(replica, outcome)
        if outcome.route is not None and is_newer(outcome.route.epoch, self.routes.epoch):
            self.queue.extendleft(reversed(_redirects(outcome.route, self.call.freshness)))
        return None


class Dispatcher:
    """Sends calls to replicas. Lives on the event loop. After `attempt_timeout_s` an attempt may be given up."""

    def __init__(
        self,
        tables: CurrentTable,
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
        self._round_robin = RoundRobin()
        self._background = BackgroundWork()
        self._waits = JoinedWaits()

    async def dispatch(
        self,
        call: Call,
        deadline: Deadline,
        attempt_log: AttemptLog | None = None,
        *,
        handed: HandedLookup | None = None,
    ) -> NodeAnswer:
        """Return the first answer. A caller that wants the attempts passes an `attempt_log` to fill.

        `handed`: a node has been asked already; what comes of that is what comes of the first attempt.

        Raises:
            LookupFailure: a node's failure that is final; NO_REPLICA_AVAILABLE; OVERLOADED, if every candidate is;
                POSITION_NOT_REACHED or MOMENT_NOT_REACHED, if a candidate has not reached it; MOMENT_GONE or
                MOMENTS_UNAVAILABLE, if every candidate says so; or DEADLINE_EXCEEDED.

        """
        self._budget.lookup(asyncio.get_running_loop().time())
        attempt_log = AttemptLog() if attempt_log is None else attempt_log
        routes = self._tables.current().store(call.store).partition(call.partition)
        for replica in routes.replicas:
            if (earlier := call.failed_before.get(replica.instance_id)) is not None:
                attempt_log.note(replica, earlier)
        if deadline.remaining_s < _LEAST_ATTEMPT_S:
            # The lookup waited here until its caller gave up: to work on it would make others wait, too.
            raise self.failure(call, routes, attempt_log, is_late=True)
        skipped = set(call.failed_before)
        held: HeldLookup | None = None
        answer: NodeAnswer | None = None
        rounds_in_time = 0
        try:
            for number in itertools.count(1):
                table = self._tables.current()
                attempt_log.epochs.add(table.epoch)
                routes = table.store(call.store).partition(call.partition)
                turn = self._round_robin.take(routes)
                queue = _begun_first(ask_order(routes, call.freshness, self.suspects, turn), handed)
                body = call.body + (table.page_forwarding if call.is_page else table.forwarding)
                round_ = _Round(number, call, body, routes, deadline, attempt_log, skipped, queue, handed)
                handed = None
                answer = await self._run(round_)
                if answer is not None:
                    return answer
                rounds_in_time += not attempt_log.has_late
                if not attempt_log.goes_on_after(rounds_in_time):
                    held = held or self._hold(call, attempt_log)
                    if held is None or not await held.may_ask(deadline):
                        break
                if not await self._has_time_for_more(attempt_log, table.epoch, deadline):
                    break
                skipped = attempt_log.overloaded
        finally:
            if held is not None:
                held.end(is_answered=answer is not None)
        # A held lookup does not fail with the deadline: every candidate has said why it can't answer.
        is_late = held is None and deadline.remaining_s < _LEAST_ATTEMPT_S
        raise self.failure(call, routes, attempt_log, is_late=is_late)

    def _hold(self, call: Call, attempt_log: AttemptLog) -> HeldLookup | None:
        """Hold a lookup that would fail, if its failures pass on their own and there is room.

        An explained lookup is not held: its caller wants to know now why it fails.
        """
        if attempt_log.is_explained or not attempt_log.passes:
            return None
        partition = (call.store, call.partition)
        outcome, window = self._holds.begin(partition, asyncio.get_running_loop().time())
        self._metrics.hold(outcome)
        return None if window is None else HeldLookup(self._holds, window)

    async def _run(self, round_: _Round) -> NodeAnswer | None:
        """Ask each candidate that was not asked yet; None if none answered or the time is up."""
        while (replica := round_.next()) is not None:
            kind = round_.kind(replica)
            delay_s = math.inf if kind is None else self._attempts.answer_times.hedge_delay_s(kind)
            if kind is None or delay_s >= self._attempt_timeout_s or round_.attempt_log.is_hedged or not round_.queue:
                answer = round_.take(replica, await self._attempt(round_, replica))
            else:
                answer = await self._hedged_attempt(round_, replica, kind, delay_s)
            if answer is not None:
                return answer
        return None

    async def _hedged_attempt(
        self, round_: _Round, replica: RoutedReplica, kind: CallKind, delay_s: float
    ) -> NodeAnswer | None:
        """Ask a replica and, if its answer is late, a second one too; return the first answer.

        The first is asked without a task of its own: most lookups are not hedged, and tasks cost more than timers.
        """
        loop = asyncio.get_running_loop()
        started_at = round_.sent_at(replica, loop.time())
        hedges: list[tuple[RoutedReplica, asyncio.Task[CallOutcome]]] = []
        has_won = False

        def send() -> None:
            if (rival := self._rival(round_)) is not None:
                task = self._background.start(self._attempt(round_, rival, is_hedge=True), "hedge")
                task.add_done_callback(end_race)
                hedges.append((rival, task))

        def end_race(hedge: asyncio.Task[CallOutcome]) -> None:
            has_ended_well = not hedge.cancelled() and hedge.exception() is None
            if is_racing and has_ended_well and isinstance(hedge.result(), bytes):
                race.reschedule(loop.time())

        is_racing, timer = True, loop.call_at(started_at + delay_s, send)
        try:
            try:
                async with asyncio.timeout(None) as race:
                    outcome: CallOutcome | None = await self._attempt(round_, replica)
            except TimeoutError:
                outcome = None
                self._overtaken(replica, kind, loop.time() - started_at)
            finally:
                is_racing = False  # also for a caller that has left while the hedge was answered
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

    def _overtaken(self, replica: RoutedReplica, kind: CallKind, waited_s: float) -> None:
        self._metrics.attempt("CANCELLED")
        if replica.node is not None:
            self._attempts.overtaken(replica.node, kind, waited_s)

    def _rival(self, round_: _Round) -> RoutedReplica | None:
        """Return the replica to hedge a late call with; None if there is none or the retry budget refuses."""
        round_.attempt_log.is_hedged = True
        rival = self._next_that_is_well(round_)
        if rival is None:
            return None
        if not self._budget.hedge(asyncio.get_running_loop().time()):
            self._metrics.hedge("refused")
            round_.attempt_log.refused = "hedge"
            return None
        round_.asked.add(rival.instance_id)
        return rival

    def _next_that_is_well(self, round_: _Round) -> RoutedReplica | None:
        """Return the next replica that by everything known can answer within the bound and in time."""
        verdicts = judge(round_.routes, round_.call.freshness, self.suspects)
        fit = {each.replica.instance_id for each in verdicts if each.eligibility is Eligibility.INCLUDED} - round_.asked
        return next((replica for replica in round_.queue if replica.instance_id in fit), None)

    async def _attempt(self, round_: _Round, replica: RoutedReplica, *, is_hedge: bool = False) -> CallOutcome:
        """Ask one node, or wait along with who waits there; return its answer or failure."""
        node = replica.node
        if node is None:
            return LookupFailure(Reason.UNKNOWN_ADDRESS, "no address")
        ask = partial(self._ask, round_, replica, node, is_hedge=is_hedge)
        behind = round_.behind(replica)
        if behind is None:
            return await ask()
        place = (replica.instance_id, round_.call.store, round_.call.partition)
        return await self._waits.ask(place, round_.wanted, behind, self._timeout_s(round_, replica), ask)

    async def _ask(self, round_: _Round, replica: RoutedReplica, node: RoutedNode, *, is_hedge: bool) -> CallOutcome:
        call = round_.call
        timeout_s = self._timeout_s(round_, replica)
        is_lenient = timeout_s < min(_LEAST_SHARE_S, self._attempt_timeout_s)
        # A node waits for a position as long as its deadline allows, and reports in time that it has not reached it.
        deadline = Deadline.after(timeout_s) if round_.may_be_late(replica) else round_.deadline
        handed = round_.take_handed(replica)
        if handed is not None:
            waited_s = asyncio.get_running_loop().time() - handed.sent_at
            timeout_s = max(timeout_s - waited_s, _LEAST_ATTEMPT_S)
        limits = AttemptLimits(deadline, timeout_s, partial(self._may_give_up, round_), is_lenient)
        round_.under_way += 1
        round_.attempt_log.calls += 1
        record, body = round_.record(replica, is_hedge=is_hedge), round_.body
        if record is not None:
            body += round_.attempt_log.begun(record)
        outcome: CallOutcome | None = None
        try:
            outcome = await self._attempts.make(
                node, call.method, body, limits, kind=round_.kind(replica), handed=handed
            )
        finally:
            round_.under_way -= 1
            if record is not None:
                round_.attempt_log.ended(record, asyncio.get_running_loop().time(), outcome)
        if isinstance(outcome, bytes):
            outcome = checked(call.method, call.store, call.freshness, node.instance_id, outcome)
        self._metrics.attempt("OK" if isinstance(outcome, bytes) else outcome.reason.name)
        return outcome

    def _may_give_up(self, round_: _Round) -> bool:
        """Whether an attempt whose time has run out may end: the next attempt is paid from the retry budget.

        If the budget has nothing left and no other candidate is well, the late answer is the likeliest to come.
        """
        if round_.under_way > 1:
            return True
        is_owed = self._next_that_is_well(round_) is not None
        is_allowed = self._budget.retry(asyncio.get_running_loop().time(), is_owed=is_owed)
        self._metrics.retry(is_allowed=is_allowed)
        if not is_allowed:
            round_.attempt_log.refused = "retry"
        return is_allowed

    def _timeout_s(self, round_: _Round, replica: RoutedReplica) -> float:
        remaining_s = round_.deadline.remaining_s
        patience_s = self._attempt_timeout_s * 2.0 ** round_.attempt_log.times_late(replica.instance_id)
        if round_.may_be_late(replica):
            patience_s = max(patience_s, self._attempt_timeout_s * min(2.0 ** (round_.number - 1), _LONGEST_WAIT))
        candidates_left = 1 + round_.unasked
        if round_.call.is_patient:
            return max(min(remaining_s, self._attempt_timeout_s), remaining_s / candidates_left)
        # A short deadline is shared out, so that a frozen first candidate leaves the next one its turn; but not
        # into parts in which a healthy node could not answer.
        share_s = max(remaining_s / candidates_left, _LEAST_SHARE_S)
        return min(remaining_s, share_s, patience_s)

    async def _has_time_for_more(self, attempt_log: AttemptLog, epoch: int, deadline: Deadline) -> bool:
        """Pause before the next round; False if there is no time for it then."""
        remaining_s = deadline.remaining_s
        if is_newer(attempt_log.newest_epoch, epoch):
            await self._tables.wait_for_epoch(attempt_log.newest_epoch, min(_EPOCH_WAIT_S, remaining_s / 2))
        else:
            await self._tables.wait_for_epoch(epoch + 1, min(_PAUSE_S, remaining_s / 2))
        # With less, a node could not wait for the position.
        return deadline.remaining_s >= (_LEAST_ATTEMPT_S if attempt_log.furthest is None else _LEAST_SHARE_S)

    def failure(self, call: Call, routes: PartitionRoutes, attempt_log: AttemptLog, *, is_late: bool) -> LookupFailure:
        """Sum up a lookup that nobody answered."""
        return summed_up(self._tables.table, routes, call.freshness, self.suspects, attempt_log, is_late=is_late)


@contextmanager
def naming(partition: int) -> Iterator[None]:
    """Have a failure name the partition, where several are asked."""
    try:
        yield
    except LookupFailure as failure:
        raise LookupFailure(
            failure.reason,
            f"partition {partition}: {failure.message}",
            failure.metadata | {"partition": str(partition)},
            route=failure.route,
            candidates=failure.candidates,
        ) from failure


def _begun_first(order: Sequence[RoutedReplica], handed: HandedLookup | None) -> deque[RoutedReplica]:
    """Return the replicas to ask; one that was asked already comes first."""
    if handed is None:
        return deque(order)
    return deque(sorted(order, key=lambda replica: not _was_asked(replica, handed)))


def _was_asked(replica: RoutedReplica, handed: HandedLookup) -> bool:
    return replica.node is not None and handed.was_made_to(replica.instance_id, replica.node.target)


def _redirects(route: errors_pb2.Route, bound: Freshness) -> list[RoutedReplica]:
    """Return the hosts of a newer route as replicas to ask."""
    hosts = [(Role.ACTIVE, route.active)] if route.HasField("active") else []
    if not bound.active_only:
        hosts += [(Role.STANDBY, host) for host in route.standbys]
    return [
        RoutedReplica(host.instance_id, role, RoutedNode(host.instance_id, host.host, host.port))
        for role, host in hosts
        if host.host and host.port
    ]
