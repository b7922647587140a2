"""A simulated router: the real tracker, tables, health and dispatch, asking simulated nodes over simulated links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import grpc

from query_service.reads.position_waits import PositionNotReached
from router.calls.attempts import Attempts
from router.calls.coalesce import Coalescer
from router.calls.express_way import ExpressWay
from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes
from router.choice.budget import RetryBudget
from router.choice.express import ExpressLimits
from router.choice.hold import Holds
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, RoutingTable
from router.fleet.tracker import FleetTracker
from router.lookups.dispatch import Dispatcher
from router.lookups.locate import keyed_call
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.assignment import AssignmentReader
from statehouse.contract.membership import decode_member
from statehouse.errors import LookupFailure, Reason
from statehouse.errors.statuses import to_status
from statehouse.link.handed import HandedLookup
from statehouse.link.link import Link
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2
from tests.simulation.callers import HEALTH_CHECK, QUERY, RulesFile, SimulatedGate
from tests.simulation.checks import READER, ROUTER, Checks
from tests.simulation.kafka import Follower, Kafka
from tests.simulation.node import SimulatedNode
from tests.simulation.proxy import SimulatedProxy
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import Process, World, epoch_ms, settle

ATTEMPT_TIMEOUT_S = 0.25
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_MAX_LOOKUPS = 2_000


class _RpcError(grpc.RpcError):
    """A failed call, as grpcio reports it."""

    def __init__(self, code: grpc.StatusCode, details: str, failure: LookupFailure | None = None) -> None:
        super().__init__(details)
        self._code, self._details = code, details
        status = None if failure is None else to_status(failure).SerializeToString()
        self._trailing = () if status is None else (("grpc-status-details-bin", status),)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing


class SimulatedRouter(Process):
    """A router. `nodes` is who runs at which machine now."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        settings: SimulationSettings,
        rules: RulesFile,
        name: str,
        nodes: Mapping[str, SimulatedNode],
    ) -> None:
        super().__init__(world, name, name)
        self._nodes, self._checks = nodes, checks
        self.gate = SimulatedGate(self, rules, checks)
        self.tables = CurrentTable()
        self.health = NodeHealth(self._probe, probe_timeout_s=ATTEMPT_TIMEOUT_S, on_change=self._refresh_express)
        self.tracker = FleetTracker(self.tables, self._on_table, session_timeout_s=settings.session_timeout_s)
        self._answer_times = AnswerTimes(quantile=0.95, least_s=0.01, most_s=ATTEMPT_TIMEOUT_S)
        metrics, budget = RouterMetrics(), RetryBudget(10.0, 5)
        coalescer = Coalescer(self._call, metrics, max_message_bytes=_MAX_MESSAGE_BYTES)
        self._dispatcher = Dispatcher(
            self.tables,
            Attempts(coalescer.ask, self.health, self._answer_times),
            budget,
            metrics,
            attempt_timeout_s=ATTEMPT_TIMEOUT_S,
            holds=Holds(window_s=settings.hold_window_s, most=10, min_interval_s=5.0),
        )
        self.proxy: SimulatedProxy | None = None
        if settings.express:
            self.proxy = SimulatedProxy(world, name, self._call, self._look_up, _MAX_MESSAGE_BYTES)
            self._express = ExpressWay(
                cast(Link, self.proxy),
                self.tables,
                self.health,
                self._answer_times,
                budget,
                metrics,
                bounds=ExpressLimits(_MAX_LOOKUPS, _MAX_LOOKUPS, ATTEMPT_TIMEOUT_S, needs_permits=False),
            )
            self._express_task = world.task(self._express.run())
        self._reader = AssignmentReader()
        self._members_log = Follower(
            self, kafka.members, self._member_record, on_contact=lambda: self.tracker.on_caught_up("members")
        )
        self._assignment_log = Follower(
            self, kafka.assignments, self._assignment_record, on_contact=lambda: self.tracker.on_caught_up("assignment")
        )

    @property
    def is_ready(self) -> bool:
        return self.tables.table is not None

    async def close(self) -> None:
        self._members_log.close()
        self._assignment_log.close()
        if self.proxy is not None:
            self._express_task.cancel()
        self.tracker.close()
        await self.health.close()

    async def get(self, data: bytes, timeout_s: float) -> query_service_pb2.GetResponse:
        """Answer a reader's serialized GetRequest as the router's server does.

        Raises:
            LookupFailure: nobody could.

        """
        self.gate.admit(READER, f"{QUERY}Get", data)
        if self.proxy is None:
            answer = await self._look_up(data, Deadline.after(timeout_s), None)
        else:
            answer = await self.proxy.get(data, timeout_s)
        return query_service_pb2.GetResponse.FromString(answer)

    async def _look_up(self, data: bytes, deadline: Deadline, handed: HandedLookup | None) -> bytes:
        call = keyed_call(self.tables.current(), "Get", data)
        return (await self._dispatcher.dispatch(call, deadline, handed=handed)).data

    def _on_table(self, table: RoutingTable) -> None:
        self.health.retain(table.nodes)
        self._answer_times.retain(table.nodes.keys(), table.stores.keys())
        self._refresh_express()

    def _refresh_express(self) -> None:
        if self.proxy is not None:
            self._express.refresh()

    def _assignment_record(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        assignment = self._reader.feed(key, value)
        if assignment is not None:
            self._checks.taken(self.name, assignment)
            self.tracker.on_assignment(assignment)

    def _member_record(self, key: bytes, value: bytes | None, written_at: float) -> None:
        if value is None:
            self.tracker.on_member_left(key.decode())
            return
        age_s = 0.0 if self._members_log.is_caught_up else self.world.now - written_at
        self.tracker.on_member(decode_member(key, value, epoch_ms(written_at), epoch_ms(self.world.now)), age_s)

    async def _call(self, node: RoutedNode, method: str, body: bytes, timeout_s: float) -> bytes:
        reply: asyncio.Future[bytes | _RpcError] = self.world.loop.create_future()

        def answer(outcome: bytes | _RpcError) -> None:
            self.world.net.send(node.host, self.machine, lambda: settle(reply, outcome))

        def arrive() -> None:
            process = self._nodes.get(node.host)
            if process is None or not process.is_alive or not process.is_listening:
                answer(_RpcError(grpc.StatusCode.UNAVAILABLE, "connection refused"))
            else:
                process.enter(self._serve, process, method, body, timeout_s, answer)

        self.send(node.host, arrive)
        outcome: bytes | _RpcError = await self._reply(reply, timeout_s)
        if isinstance(outcome, _RpcError):
            raise outcome
        return outcome

    def _serve(
        self,
        process: SimulatedNode,
        method: str,
        body: bytes,
        timeout_s: float,
        answer: Callable[[bytes | _RpcError], None],
    ) -> None:
        """What a node's server does with a call."""
        if not process.is_listening:
            answer(_RpcError(grpc.StatusCode.UNAVAILABLE, "connection closed"))
            return
        try:
            process.gate.admit(ROUTER, f"{QUERY}{method}", body, is_forwarded=True)
        except LookupFailure as failure:
            answer(self._refusal(failure))
            return
        if method == "BatchGet":
            answer(self._batch(process, query_service_pb2.BatchGetRequest.FromString(body)))
            return
        request = query_service_pb2.GetRequest.FromString(body)

        async def attempt() -> bytes:
            await process.turn()
            return process.handle(request).SerializeToString()

        async def wait(behind: PositionNotReached) -> None:
            outcome: bytes | _RpcError
            try:
                outcome = await process.waits.patiently(request, attempt, behind, Deadline.after(0.8 * timeout_s))
            except LookupFailure as failure:
                outcome = self._refusal(failure)
            process.enter(answer, outcome)

        try:
            answer(process.handle(request).SerializeToString())
        except PositionNotReached as behind:
            self.world.counts["waits for a position"] += 1
            self.world.task(wait(behind))
        except LookupFailure as failure:
            answer(self._refusal(failure))

    def _batch(self, process: SimulatedNode, batch: query_service_pb2.BatchGetRequest) -> bytes:
        self.world.counts["lookups that went together"] += len(batch.requests)
        response = query_service_pb2.BatchGetResponse()
        for request in batch.requests:
            try:
                response.results.add(response=process.handle(request))
            except PositionNotReached as behind:
                response.results.add(error=LookupFailure(Reason.WOULD_WAIT, behind.message).to_proto())
            except LookupFailure as failure:
                response.results.add(error=failure.to_proto())
        return response.SerializeToString()

    def _refusal(self, failure: LookupFailure) -> _RpcError:
        self.world.counts[f"refused: {failure.reason.name}"] += 1
        return _RpcError(grpc.StatusCode.FAILED_PRECONDITION, failure.message, failure)

    async def _probe(self, node: RoutedNode, timeout_s: float) -> bool:
        reply: asyncio.Future[bool] = self.world.loop.create_future()

        def answer(process: SimulatedNode) -> None:
            process.gate.admit(ROUTER, HEALTH_CHECK, b"")
            up = process.is_listening
            self.world.net.send(node.host, self.machine, lambda: settle(reply, up))

        def arrive() -> None:
            process = self._nodes.get(node.host)
            if process is not None and process.is_alive:
                process.enter(answer, process)

        self.send(node.host, arrive)
        return (await self._reply(reply, timeout_s)) is True

    async def _reply(self, reply: asyncio.Future[Any], timeout_s: float) -> Any:
        timer = self.world.loop.call_later(timeout_s, _give_up, reply)
        try:
            return await reply
        finally:
            timer.cancel()


def _give_up(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_result(_RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"))
