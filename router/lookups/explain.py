"""An explained lookup: the state before it, the replicas asked, and each one's answer and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes
from router.choice.attempt_log import AttemptLog, AttemptRecord
from router.choice.candidates import judge
from router.choice.express import Obstacle, ObstacleKind
from router.fleet.current_table import CurrentTable
from router.fleet.table import PartitionRoutes
from router.lookups.keyed import KeyLookups
from router.lookups.locate import keyed_call
from router.lookups.overload import LookupLimit
from statehouse.contract.placement import warning
from statehouse.errors import LookupFailure
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import errors_pb2, fleet_service_pb2, types_pb2


class Explainer:
    """Answers ExplainGet. Lives on the event loop.

    `obstacle_to(request, routes)`: what keeps a serialized GetRequest from the express way, None if nothing does.
    """

    def __init__(
        self,
        tables: CurrentTable,
        limit: LookupLimit,
        keys: KeyLookups,
        health: NodeHealth,
        answer_times: AnswerTimes,
        obstacle_to: Callable[[bytes, PartitionRoutes], Obstacle | None],
    ) -> None:
        self._tables, self._limit = tables, limit
        self._keys, self._health, self._answer_times = keys, health, answer_times
        self._obstacle_to = obstacle_to

    async def explain_get(
        self, request: fleet_service_pb2.ExplainGetRequest, deadline: Deadline
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Look a key up, in the same way as any other lookup, and return its steps.

        Raises:
            LookupFailure: the request can't be routed, so there is nothing to explain.

        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        table = self._tables.current()
        lookup = request.lookup.SerializeToString()
        call = keyed_call(table, "Get", lookup)
        routes = table.store(call.store).partition(call.partition)
        obstacle = self._obstacle_to(lookup, routes)
        if obstacle is not None and (placement := table.scattered(call.store)) is not None:
            obstacle = Obstacle(ObstacleKind.KEYS_MISPLACED, warning(placement))
        explained = fleet_service_pb2.ExplainGetResponse(
            route=routes.route(),
            candidates=[verdict.to_proto() for verdict in judge(routes, call.freshness, self._health.suspects)],
            hedge_after_ms=self._answer_times.hedge_delay_s((call.store, call.method)) * 1_000,
            express_obstacle=fleet_service_pb2.ExpressObstacle.ValueType(
                0 if obstacle is None else obstacle.kind.value
            ),
            express_detail="" if obstacle is None else obstacle.detail,
        )
        attempt_log = AttemptLog(attempts=[])
        try:
            with self._limit.admitted(len(lookup)) as place:
                if call.freshness.at_least is not None:
                    place.wait_for_positions(len(lookup))
                answer = await self._keys.answer(call, deadline, attempt_log)
        except LookupFailure as failure:
            explained.error.CopyFrom(failure.to_proto())
        else:
            explained.response.ParseFromString(answer.data)
        now = loop.time()
        explained.attempts.extend(_told(record, began_at, now) for record in attempt_log.attempts or ())
        explained.took_ms = (now - began_at) * 1_000
        explained.retry_budget_refused = attempt_log.refused
        return explained


def _told(record: AttemptRecord, began_at: float, now: float) -> fleet_service_pb2.LookupAttempt:
    attempt = fleet_service_pb2.LookupAttempt(
        host=record.replica.host(),
        role=types_pb2.ReplicaRole.ValueType(record.replica.role.value),
        round=record.round,
        hedge=record.is_hedge,
        sent_after_ms=(record.sent_at - began_at) * 1_000,
        took_ms=((now if record.ended_at is None else record.ended_at) - record.sent_at) * 1_000,
    )
    match record.outcome:
        case None:
            attempt.outcome = fleet_service_pb2.ATTEMPT_OUTCOME_OVERTAKEN
        case LookupFailure() as failure:
            attempt.outcome = fleet_service_pb2.ATTEMPT_OUTCOME_FAILED
            attempt.reason = errors_pb2.ErrorReason.ValueType(failure.reason.value)
            attempt.detail = failure.message
        case _:
            attempt.outcome = fleet_service_pb2.ATTEMPT_OUTCOME_ANSWERED
    return attempt
