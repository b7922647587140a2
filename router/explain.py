"""A lookup with an account of itself: what was known before it, whom it asked, what each said and when."""

from __future__ import annotations

import asyncio

from router.admission import Admission
from router.choice import judge
from router.dispatch import Dispatcher
from router.holder import TableHolder
from router.lateness import Lateness
from router.locate import keyed_call
from router.progress import AttemptRecord, Progress
from statehouse.errors import LookupFailure
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import errors_pb2, fleet_service_pb2, types_pb2


class Explainer:
    """Answers ExplainGet. Lives on the event loop."""

    def __init__(self, tables: TableHolder, admission: Admission, dispatcher: Dispatcher, lateness: Lateness) -> None:
        self._tables, self._admission = tables, admission
        self._dispatcher, self._lateness = dispatcher, lateness

    async def explain_get(
        self, request: fleet_service_pb2.ExplainGetRequest, deadline: Deadline
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Look a key up, by the same way as any other lookup, and return what was done.

        Raises:
            LookupFailure: the request can't be routed, so that there is nothing to tell.

        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        table = self._tables.current()
        call = keyed_call(table, "Get", request.lookup.SerializeToString())
        routes = table.store(call.store).partition(call.partition)
        explained = fleet_service_pb2.ExplainGetResponse(
            route=routes.route(),
            candidates=[verdict.to_proto() for verdict in judge(routes, call.freshness, self._dispatcher.suspects)],
            hedge_after_ms=self._lateness.hedge_delay_s((call.store, call.method)) * 1_000,
        )
        progress = Progress(attempts=[])
        try:
            with self._admission.admitted():
                answer = await self._dispatcher.dispatch(call, deadline, progress)
        except LookupFailure as failure:
            explained.error.CopyFrom(failure.to_proto())
        else:
            explained.response.ParseFromString(answer.data)
        now = loop.time()
        explained.attempts.extend(_told(record, began_at, now) for record in progress.attempts or ())
        explained.took_ms = (now - began_at) * 1_000
        explained.retry_budget_refused = progress.refused
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
