"""Which nodes to ask last for now, learnt from calls rather than from heartbeats.

A heartbeat is seconds old; a failed call is the truth of this moment. After a failed connection a node is *down*,
after an attempt that got no answer in time it is *silent* (frozen, cut off, overloaded), and one that answers much
later than the others is *slow*: different states, because a down node refuses at once, a silent one costs the whole
attempt, and a slow one still has the answer (TiKV keeps a liveness probe and a slow score apart likewise). Each is
asked last until a call or a probe gets through, for a slow node one that is quick again, or until another process takes
its place. So a frozen node costs a few lookups the hedge delay, or one attempt, and later ones nothing.

A node that answers probes but not lookups would swing between the two: each time it is suspected again without a
lookup having got through, the probes start later.

At most one probe per suspect node is under way; probes are health checks, which cost a node almost nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import structlog

from router.choice import Suspicion
from router.table import Node
from statehouse.errors import Reason

log = structlog.get_logger(__name__)

Probe = Callable[[Node, float], Awaitable[bool]]

_SUSPICIOUS = frozenset({Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT})


class NodeHealth:
    """The nodes under suspicion. Lives on the event loop.

    `probe(node, timeout_s)` tells whether the node answers. The pause before a probe doubles from
    `probe_interval_s` to `probe_interval_max_s`, and starts over once a lookup has got through. `on_suspicion` is told
    each time a node comes to be asked last: "slow", "silent" or "down".
    """

    def __init__(
        self,
        probe: Probe,
        *,
        probe_timeout_s: float,
        probe_interval_s: float = 0.1,
        probe_interval_max_s: float = 1.0,
        on_suspicion: Callable[[str], None] = lambda _state: None,
    ) -> None:
        self._probe, self._probe_timeout_s = probe, probe_timeout_s
        self._interval_s, self._interval_max_s = probe_interval_s, probe_interval_max_s
        self._on_suspicion = on_suspicion
        self._suspects: dict[str, Suspicion] = {}
        self._probes: dict[str, tuple[Node, asyncio.Task[None]]] = {}
        self._cleared_at: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self.suspects: Mapping[str, Suspicion] = MappingProxyType(self._suspects)
        """Live view: instance id to what is held against it."""

    def answered(self, node: Node, took_s: float = math.inf) -> None:
        """Note that a call got through; the default says nothing of how quick the node is."""
        suspicion = self._suspects.get(node.instance_id)
        if suspicion is not None and not suspicion.ends_with_answer_in(took_s):
            return
        if node.instance_id in self._pause_s:
            del self._pause_s[node.instance_id]
        if suspicion is not None:
            self._clear(node.instance_id, "it answered a lookup")

    def failed(self, node: Node, reason: Reason, detail: str, started_at: float) -> None:
        """Note a failed call that began at `started_at` (loop time); one from before a recovery proves nothing."""
        if reason not in _SUSPICIOUS or started_at < self._cleared_at.get(node.instance_id, started_at):
            return
        self._suspect(node, Suspicion(reason, detail))

    def slow(self, node: Node, late_after_s: float) -> None:
        """Note that a node answers late; it is taken back once it answers within this time."""
        if node.instance_id not in self._suspects:
            detail = f"slow: its latest answers took longer than {late_after_s * 1_000:.0f} ms, the others' did not"
            self._suspect(node, Suspicion(Reason.ATTEMPT_TIMED_OUT, detail, late_after_s))

    def _suspect(self, node: Node, suspicion: Suspicion) -> None:
        known = self._suspects.get(node.instance_id)
        if known is None or known.severity != suspicion.severity:
            state = suspicion.severity.name.lower()
            log.info("node is asked last for now", node=node.instance_id, state=state, detail=suspicion.detail)
            self._suspects[node.instance_id] = suspicion
            self._on_suspicion(state)
        if node.instance_id not in self._probes:
            task = asyncio.create_task(self._watch(node), name=f"probe-{node.instance_id}")
            self._probes[node.instance_id] = (node, task)

    def retain(self, nodes: Mapping[str, Node]) -> None:
        """Forget nodes that left the fleet, moved, or were taken over by a new process."""
        for instance_id, (node, _) in list(self._probes.items()):
            now = nodes.get(instance_id)
            if now is None or now.target != node.target or (node.incarnation and now.incarnation != node.incarnation):
                self._clear(instance_id, "another process has taken its place, or it left")
                self._pause_s.pop(instance_id, None)
        for remembered in (self._cleared_at, self._pause_s):
            for instance_id in remembered.keys() - nodes.keys():
                del remembered[instance_id]

    async def close(self) -> None:
        """Stop probing."""
        tasks = [task for _, task in self._probes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, node: Node) -> None:
        """Probe until it answers, a slow node in time."""
        loop = asyncio.get_running_loop()
        while True:
            pause_s = self._pause_s.get(node.instance_id, self._interval_s)
            self._pause_s[node.instance_id] = min(pause_s * 2, self._interval_max_s)
            await asyncio.sleep(pause_s)
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
