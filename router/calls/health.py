"""The nodes to ask last for now, learnt from calls rather than from heartbeats.

A heartbeat is seconds old; a failed call shows the node as it is now. After a failed connection a node is *down*. After
an attempt without an answer in time it is *silent* (frozen, cut off or overloaded). If it answers much later than the
others it is *slow*. These states differ because a down node refuses immediately, a silent one costs the whole attempt,
and a slow one still has the answer (TiKV separates a liveness probe and a slow score, too). Each is asked last until a
call or a probe gets through (for a slow node: a quick one), or until another process takes its place. So a frozen node
costs a few lookups the hedge delay or one attempt, and later lookups nothing.

A node that answers probes but not lookups would alternate between the states: each time it is suspected again before
any lookup got through, the probes start later.

At most one probe per suspect node is under way; probes are health checks, which cost a node almost nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import structlog

from router.choice.candidates import Suspicion
from router.fleet.table import RoutedNode
from statehouse.errors import Reason
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.backoff import BackoffByKey, BackoffPolicy, OnPause

log = structlog.get_logger(__name__)

Probe = Callable[[RoutedNode, float], Awaitable[bool]]

PROBES: Final = BackoffPolicy("probe", first_s=0.1, longest_s=1.0)
_SUSPICIOUS = frozenset({Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT})


class NodeHealth:
    """The nodes under suspicion. Lives on the event loop.

    `probe(node, timeout_s)` tells whether the node answers. `probes` sets the pauses before probes; they start over
    once a lookup gets through, and `on_pause` is called for each. `on_suspicion` is called with "slow", "silent" or
    "down" each time the router begins to ask a node last, or finds such a node in another of these states; `on_change`
    then, and when it no longer does.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        probe_timeout_s: float,
        probes: BackoffPolicy = PROBES,
        on_suspicion: Callable[[str], None] = lambda _state: None,
        on_change: Callable[[], None] = lambda: None,
        on_pause: OnPause = lambda _cause: None,
    ) -> None:
        self._probe, self._probe_timeout_s = probe, probe_timeout_s
        self._on_suspicion, self._on_change = on_suspicion, on_change
        self._suspects: dict[str, Suspicion] = {}
        self._background = BackgroundWork()
        self._probes: dict[str, tuple[RoutedNode, asyncio.Task[None]]] = {}
        self._cleared_at: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        self._backoff: BackoffByKey[str] = BackoffByKey(probes, on_pause)
        self.suspects: Mapping[str, Suspicion] = MappingProxyType(self._suspects)
        """Live view: the suspicion of each suspect node, by instance id."""

    def answered(self, node: RoutedNode, took_s: float = math.inf) -> None:
        """Note that a call got through; the default time says nothing about the node's speed."""
        self._answered_at[node.instance_id] = asyncio.get_running_loop().time()
        suspicion = self._suspects.get(node.instance_id)
        if suspicion is not None and not suspicion.ends_with_answer_in(took_s):
            return
        self._backoff.succeeded(node.instance_id)
        if suspicion is not None:
            self._clear(node.instance_id, "it answered a lookup")

    def has_answered_since(self, node: RoutedNode, at: float) -> bool:
        """Whether a call to a node got through later than at this loop time."""
        return self._answered_at.get(node.instance_id, -math.inf) > at

    def failed(self, node: RoutedNode, reason: Reason, detail: str, started_at: float) -> None:
        """Note a failed call that began at `started_at` (loop time); one from before a recovery does not count."""
        if reason not in _SUSPICIOUS or started_at < self._cleared_at.get(node.instance_id, started_at):
            return
        self._suspect(node, Suspicion(reason, detail))

    def slow(self, node: RoutedNode, late_after_s: float) -> None:
        """Note that a node answers late; the suspicion ends once it answers within this time."""
        if node.instance_id not in self._suspects:
            detail = f"slow: its latest answers took longer than {late_after_s * 1_000:.0f} ms, the others' did not"
            self._suspect(node, Suspicion(Reason.ATTEMPT_TIMED_OUT, detail, late_after_s))

    def _suspect(self, node: RoutedNode, suspicion: Suspicion) -> None:
        known = self._suspects.get(node.instance_id)
        if known is None or known.severity != suspicion.severity:
            state = suspicion.severity.name.lower()
            log.info("node is asked last for now", node=node.instance_id, state=state, detail=suspicion.detail)
            self._suspects[node.instance_id] = suspicion
            self._on_suspicion(state)
            self._on_change()
        if node.instance_id not in self._probes:
            task = self._background.start(self._watch(node), f"probe {node.instance_id}")
            self._probes[node.instance_id] = (node, task)

    def retain(self, nodes: Mapping[str, RoutedNode]) -> None:
        """Forget nodes that left the fleet, moved, or were replaced by a new process."""
        for instance_id, (node, _) in list(self._probes.items()):
            now = nodes.get(instance_id)
            if now is None or now.target != node.target or (node.incarnation and now.incarnation != node.incarnation):
                self._clear(instance_id, "another process has taken its place, or it left")
                self._backoff.succeeded(instance_id)
        for times in (self._cleared_at, self._answered_at):
            for instance_id in times.keys() - nodes.keys():
                del times[instance_id]
        self._backoff.retain(lambda instance_id: instance_id in nodes)

    async def close(self) -> None:
        """Stop probing."""
        await self._background.cancel()

    async def _watch(self, node: RoutedNode) -> None:
        """Probe until the node answers; a slow node must answer in time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._backoff.failed(node.instance_id))
            started_at = loop.time()
            has_answered = await self._probe(node, self._probe_timeout_s)
            if not has_answered and self._suspects[node.instance_id].is_slow:
                detail = f"no answer to a probe in {self._probe_timeout_s * 1_000:.0f} ms"
                self._suspect(node, Suspicion(Reason.ATTEMPT_TIMED_OUT, detail))
            elif has_answered and self._suspects[node.instance_id].ends_with_answer_in(loop.time() - started_at):
                break
        self._clear(node.instance_id, "it answered a probe")

    def _clear(self, instance_id: str, why: str) -> None:
        self._suspects.pop(instance_id, None)
        self._cleared_at[instance_id] = asyncio.get_running_loop().time()
        watched = self._probes.pop(instance_id, None)
        if watched is not None and watched[1] is not asyncio.current_task():
            watched[1].cancel()
        log.info("node is asked in its turn again", node=instance_id, why=why)
        self._on_change()
