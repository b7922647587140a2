"""Calls to one node for what several partitions are asked for, so that it isn't called once for each."""

from __future__ import annotations

import asyncio
from functools import partial

from router.attempts import Attempts, Limits, Outcome
from router.budget import RetryBudget
from router.holder import TableHolder
from router.lateness import Kind
from router.metrics import RouterMetrics
from router.table import Node
from statehouse.rpc.deadline import Deadline


class GroupCalls:
    """Makes them. Lives on the event loop. One that is late may be given up after `attempt_timeout_s`."""

    def __init__(
        self,
        tables: TableHolder,
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
        self, node: Node, method: str, body: bytes, deadline: Deadline, timeout_s: float, *, kind: Kind | None
    ) -> Outcome:
        """Make one call; return its answer or why there is none.

        `kind`: what it is measured as, None for calls that may take any time.
        """
        limits = Limits(
            deadline, timeout_s, partial(self._may_give_up, node), is_lenient=timeout_s < self.attempt_timeout_s
        )
        self._budget.lookup(asyncio.get_running_loop().time())
        return await self._attempts.make(node, method, body, limits, kind=kind)

    def _may_give_up(self, node: Node) -> bool:
        """Whether a call whose time has run out may end: the calls that follow it are paid from the retry budget."""
        others_well = self._tables.current().nodes.keys() - self.suspects.keys() - {node.instance_id}
        is_allowed = self._budget.retry(asyncio.get_running_loop().time(), is_owed=bool(others_well))
        self._metrics.retry(is_allowed=is_allowed)
        return is_allowed
