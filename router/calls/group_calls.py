"""One call to a node for several partitions, instead of one call for each."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from router.calls.attempts import AttemptLimits, Attempts, CallOutcome
from router.choice.answer_times import CallKind
from router.choice.budget import RetryBudget
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode
from router.telemetry.metrics import RouterMetrics
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline

# The timeout of a call that was handed over when all its time was gone.
_LEAST_TIMEOUT_S: Final = 0.001


class GroupCalls:
    """Makes these calls. Lives on the event loop. A late call may be given up after `attempt_timeout_s`."""

    def __init__(
        self,
        tables: CurrentTable,
        attempts: Attempts,
        budget: RetryBudget,
        metrics: RouterMetrics,
        *,
        attempt_timeout_s: float,
    ) -> None:
        self._tables, self._attempts, self._budget, self._metrics = tables, attempts, budget, metrics
        self.suspects = attempts.health.suspects
        self.attempt_timeout_s = attempt_timeout_s

    async def make(
        self,
        node: RoutedNode,
        method: str,
        body: bytes,
        deadline: Deadline,
        timeout_s: float,
        *,
        kind: CallKind | None,
        handed: HandedLookup | None = None,
    ) -> CallOutcome:
        """Make one call; return its answer or why there is none.

        `kind`: the kind of call for the answer times; None for calls that may take any time. `handed`: the call was
        made already, and has had a part of `timeout_s`.
        """
        now = asyncio.get_running_loop().time()
        waited_s = 0.0 if handed is None else now - handed.sent_at
        limits = AttemptLimits(
            deadline,
            max(timeout_s - waited_s, _LEAST_TIMEOUT_S),
            partial(self._may_give_up, node),
            is_lenient=timeout_s < self.attempt_timeout_s,
        )
        self._budget.lookup(now)
        return await self._attempts.make(node, method, body, limits, kind=kind, handed=handed)

    def _may_give_up(self, node: RoutedNode) -> bool:
        """Whether an overdue call may end: the retry budget pays for the calls that follow it."""
        others_well = self._tables.current().nodes.keys() - self.suspects.keys() - {node.instance_id}
        is_allowed = self._budget.retry(asyncio.get_running_loop().time(), is_owed=bool(others_well))
        self._metrics.retry(is_allowed=is_allowed)
        return is_allowed
