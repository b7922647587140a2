"""Asking replicas until one answers: one deadline, each candidate once a round, two rounds at most.

What a failure means decides what follows:

- an answer about the request (unknown key form, undecodable value, …) is final and passed through;
- an answer about the replica (restoring, too far behind, overloaded, …) or none at all leads to the next one, as
  ksqlDB does for connection errors and for standbys that are not up to the bound;
- a wrong-owner answer with a newer route leads to that route's hosts at once, before the rest (TiKV's NotLeader);
- if every failure was of a kind that passes by itself, the candidates are asked once more after a short pause,
  which ends early when a newer table arrives. OVERLOADED is not of that kind: it never leads back to the node that
  said it.

When nobody answered, the failure names every candidate with the reason it gave first: a later, more general error
never hides an earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import grpc
import grpc.aio

from router.choice import Standing, ask_order, judge
from router.health import NodeHealth
from router.holder import TableHolder
from router.metrics import RouterMetrics
from router.table import Node, PartitionRoutes, Replica, RoutingTable
from router.turns import Turns
from statehouse.consistency import ANY, Freshness
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.failures import from_rpc_error
from statehouse.topology import Role
from statehouse.v1 import errors_pb2, types_pb2

Ask = Callable[[Node, str, bytes, float], Awaitable[bytes]]

_PAUSE_S = 0.1
# How long a lookup waits for the table to reach an epoch that a node has told it of.
_EPOCH_WAIT_S = 1.0
# With less than this left, another attempt would only hide why the earlier ones failed.
_LEAST_ATTEMPT_S = 0.001
# The least that a candidate gets of a short deadline; a node is not called slow for missing less.
_LEAST_SHARE_S = 0.05
_NOTHING: Mapping[str, LookupFailure] = MappingProxyType({})

# Failures that pass by themselves: ownership moves, nodes restart, a table is a moment old.
PASSING = frozenset(
    {
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.NOT_ACTIVE,
        Reason.NODE_SHUTTING_DOWN,
        Reason.ROUTING_NOT_READY,
        Reason.UNREACHABLE,
        Reason.ATTEMPT_TIMED_OUT,
        Reason.UNKNOWN_ADDRESS,
        Reason.UNKNOWN_STORE,
    }
)


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
    failed_before: Mapping[str, LookupFailure] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer, unparsed, and the role the table gives the node."""

    data: bytes
    role: Role


@dataclass(slots=True)
class Progress:
    """What a lookup has been through. Failures are by instance id, in the order they happened, first ones kept."""

    failures: dict[str, tuple[Replica, LookupFailure]] = field(default_factory=dict)
    latest: dict[str, LookupFailure] = field(default_factory=dict)
    newest_epoch: int = 0

    def note(self, replica: Replica, failure: LookupFailure) -> None:
        """Take a failure."""
        self.failures.setdefault(replica.instance_id, (replica, failure))
        self.latest[replica.instance_id] = failure
        if failure.route is not None:
            self.newest_epoch = max(self.newest_epoch, failure.route.epoch)


class Dispatcher:
    """Sends calls to replicas. Lives on the event loop.

    `ask(node, method, body, timeout_s)` makes one attempt. `attempt_timeout_s` bounds each.
    """

    def __init__(
        self, tables: TableHolder, health: NodeHealth, ask: Ask, metrics: RouterMetrics, *, attempt_timeout_s: float
    ) -> None:
        self._tables, self._health, self._ask, self._metrics = tables, health, ask, metrics
        self._attempt_timeout_s = attempt_timeout_s
        self._turns = Turns()

    async def dispatch(self, call: Call, deadline: Deadline) -> Answer:
        """Return the first answer.

        Raises:
            LookupFailure: a final one of a node's; NO_REPLICA_AVAILABLE; OVERLOADED, if that is what every
                candidate said; or DEADLINE_EXCEEDED.

        """
        progress = Progress()
        routes = self._tables.current().store(call.store).partition(call.partition)
        for replica in routes.replicas:
            if (earlier := call.failed_before.get(replica.instance_id)) is not None:
                progress.note(replica, earlier)
        skipped = set(call.failed_before)
        for is_last in (False, True):
            table = self._tables.current()
            routes = table.store(call.store).partition(call.partition)
            answer = await self._round(call, table, routes, deadline, progress, skipped)
            if answer is not None:
                return answer
            if is_last or not await self._worth_another_round(progress, table.epoch, deadline):
                break
            skipped = set()
        raise self.failure(call, routes, progress, is_late=deadline.remaining_s < _LEAST_ATTEMPT_S)

    async def _round(
        self,
        call: Call,
        table: RoutingTable,
        routes: PartitionRoutes,
        deadline: Deadline,
        progress: Progress,
        asked: set[str],
    ) -> Answer | None:
        """Ask each candidate once, those in `asked` excepted; None if none answered or the time is up."""
        queue = deque(ask_order(routes, call.freshness, self._health.suspects, self._turns.take(routes)))
        body = call.body + table.forwarding
        while queue and (not asked or deadline.remaining_s >= _LEAST_ATTEMPT_S):
            replica = queue.popleft()
            if replica.instance_id in asked:
                continue
            asked.add(replica.instance_id)
            outcome = await self._attempt(replica, call, body, self._timeout_s(call, deadline, 1 + len(queue)))
            if isinstance(outcome, bytes):
                return Answer(outcome, replica.role)
            progress.note(replica, outcome)
            if outcome.route is not None and outcome.route.epoch > table.epoch:
                queue.extendleft(reversed(_redirects(outcome.route, call.freshness)))
        return None

    def _timeout_s(self, call: Call, deadline: Deadline, candidates_left: int) -> float:
        remaining_s = deadline.remaining_s
        if call.is_patient:
            return max(min(remaining_s, self._attempt_timeout_s), remaining_s / candidates_left)
        # A short deadline is shared out, so that a frozen first candidate leaves the next one its turn; but not
        # into parts in which a healthy node could not answer.
        share_s = max(remaining_s / candidates_left, _LEAST_SHARE_S)
        return min(remaining_s, share_s, self._attempt_timeout_s)

    async def _attempt(self, replica: Replica, call: Call, body: bytes, timeout_s: float) -> bytes | LookupFailure:
        """Ask one node; return its answer, or a failure after which another node may be asked.

        Raises:
            LookupFailure: a failure that no other node can help with.

        """
        node = replica.node
        if node is None:
            return LookupFailure(Reason.UNKNOWN_ADDRESS, "no address")
        lenient = timeout_s < min(_LEAST_SHARE_S, self._attempt_timeout_s)
        answer = await ask_node(self._ask, self._health, node, call.method, body, timeout_s, lenient=lenient)
        if isinstance(answer, bytes):
            self._metrics.attempt("OK")
            return answer
        self._metrics.attempt(answer.reason.name)
        # The router has found the store in its table: a node that does not know it is an epoch behind.
        if answer.elsewhere or answer.reason is Reason.UNKNOWN_STORE:
            return answer
        raise answer

    async def _worth_another_round(self, progress: Progress, epoch: int, deadline: Deadline) -> bool:
        """Whether to ask again; pauses first."""
        if any(failure.reason not in PASSING for failure in progress.latest.values()):
            return False
        remaining_s = deadline.remaining_s
        if progress.newest_epoch > epoch:
            await self._tables.wait_for_epoch(progress.newest_epoch, min(_EPOCH_WAIT_S, remaining_s / 2))
        else:
            await self._tables.wait_for_epoch(epoch + 1, min(_PAUSE_S, remaining_s / 2))
        return deadline.remaining_s >= _LEAST_ATTEMPT_S

    def failure(self, call: Call, routes: PartitionRoutes, progress: Progress, *, is_late: bool) -> LookupFailure:
        """Sum up a lookup that nobody answered."""
        reasons = {failure.reason for failure in progress.latest.values()}
        if is_late:
            reason = Reason.DEADLINE_EXCEEDED
        elif reasons == {Reason.OVERLOADED}:
            # Said as such, so that the caller sends less instead of trying again.
            reason = Reason.OVERLOADED
        else:
            reason = Reason.NO_REPLICA_AVAILABLE
        where = f"store {call.store}, partition {call.partition}, epoch {routes.epoch}"
        parts = [_SUMMARY[reason].format(where=where), self._shape(routes)]
        metadata = {"store": call.store, "partition": str(call.partition), "epoch": str(routes.epoch)}
        if progress.failures:
            replica, first = next(iter(progress.failures.values()))
            parts.append(f"first failure: {replica.instance_id}: {first.reason.name}: {first.message}")
            metadata["first_reason"] = first.reason.name
        candidates = self._candidates(call, routes, progress)
        message = "; ".join(part for part in parts if part)
        return LookupFailure(reason, message, metadata, route=routes.route(), candidates=candidates)

    def _candidates(self, call: Call, routes: PartitionRoutes, progress: Progress) -> list[errors_pb2.Candidate]:
        """Return every replica and why it gave no answer: those asked first, in order."""
        asked = [_asked(replica, failure) for replica, failure in progress.failures.values()]
        verdicts = judge(routes, call.freshness, self._health.suspects)
        others = [verdict for verdict in verdicts if verdict.replica.instance_id not in progress.failures]
        unasked = []
        for verdict in others:
            candidate = verdict.to_proto()
            if verdict.standing is not Standing.EXCLUDED and not candidate.detail:
                candidate.detail = "not asked: the time was up"
            unasked.append(candidate)
        return asked + unasked

    def _shape(self, routes: PartitionRoutes) -> str:
        """Say what is missing in the assignment itself."""
        table = self._tables.table
        store = None if table is None else table.stores.get(routes.store)
        if store is not None and store.spec.is_global:
            return f"nodes with a copy of this global store: {len(routes.replicas)}; every node that starts gets one"
        if not routes.replicas:
            return "the assignment names no node for the partition: start one, or wait for the processor to assign it"
        if len(routes.replicas) > 1:
            return ""
        if store is not None and store.spec.ephemeral:
            return "an ephemeral store has no standbys by nature: it is there again, empty, once it is moved"
        if store is not None and store.has_standbys:
            return "the partition has no standby at the moment"
        return "no standby is configured for this store: set num_standby_replicas and run a second node"


_SUMMARY = {
    Reason.NO_REPLICA_AVAILABLE: "no replica could answer ({where})",
    Reason.OVERLOADED: "every replica that could answer is overloaded ({where})",
    Reason.DEADLINE_EXCEEDED: "the deadline passed before a replica answered ({where})",
}


async def ask_node(
    ask: Ask, health: NodeHealth, node: Node, method: str, body: bytes, timeout_s: float, *, lenient: bool = False
) -> bytes | LookupFailure:
    """Make one attempt and tell `health` what it shows; `lenient`: being slow is not held against the node."""
    started_at = asyncio.get_running_loop().time()
    try:
        answer = await ask(node, method, body, timeout_s)
    except grpc.RpcError as error:
        failure = from_rpc_error(error)
    except grpc.aio.UsageError as error:
        return LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The call was cancelled, not we: its channel was closed under it.
        return LookupFailure(Reason.UNREACHABLE, "the connection was closed")
    else:
        health.answered(node)
        return answer
    if "grpc_status" not in failure.metadata:
        health.answered(node)  # a refusal with our details is the node's own
    elif not (lenient and failure.reason is Reason.ATTEMPT_TIMED_OUT):
        health.failed(node, failure.reason, failure.message, started_at)
    return failure


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


def _asked(replica: Replica, failure: LookupFailure) -> errors_pb2.Candidate:
    return errors_pb2.Candidate(
        host=replica.host(),
        role=types_pb2.ReplicaRole.ValueType(replica.role.value),
        eligible=False,
        reason=errors_pb2.ErrorReason.ValueType(failure.reason.value),
        detail=failure.message,
        position=replica.position,
        lag=replica.lag,
    )
