"""Which nodes to ask last for now, learnt from calls rather than from heartbeats.

A heartbeat is seconds old; a failed call is the truth of this moment. After a failed connection a node is *down*,
after an attempt that got no answer in time it is *slow* (frozen, overloaded, or far away): different states,
because a down node refuses at once and a slow one costs the whole attempt (TiKV keeps a liveness probe and a slow
score apart likewise). Either is asked last until a call or a probe gets through, or another process takes its
place. So a frozen node costs each lookup that was under way one attempt, and the later ones nothing.

A node that answers probes but not lookups would swing between the two: each time it is suspected again without a
lookup having got through, the probes start later.

At most one probe per suspect node is under way; probes are health checks, which cost a node almost nothing.
"""

from __future__ import annotations

import asyncio
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
    `probe_interval_s` to `probe_interval_max_s`, and starts over once a lookup has got through.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        probe_timeout_s: float,
        probe_interval_s: float = 0.1,
        probe_interval_max_s: float = 1.0,
    ) -> None:
        self._probe, self._probe_timeout_s = probe, probe_timeout_s
        self._interval_s, self._interval_max_s = probe_interval_s, probe_interval_max_s
        self._suspects: dict[str, Suspicion] = {}
        self._probes: dict[str, tuple[Node, asyncio.Task[None]]] = {}
        self._cleared_at: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self.suspects: Mapping[str, Suspicion] = MappingProxyType(self._suspects)
        """Live view: instance id to what is held against it."""

    def answered(self, node: Node) -> None:
        """Note that a call got through."""
        if node.instance_id in self._pause_s:
            del self._pause_s[node.instance_id]
        if node.instance_id in self._suspects:
            self._clear(node.instance_id, "it answered a lookup")

    def failed(self, node: Node, reason: Reason, detail: str, started_at: float) -> None:
        """Note a failed call that began at `started_at` (loop time); one from before a recovery proves nothing."""
        if reason not in _SUSPICIOUS or started_at < self._cleared_at.get(node.instance_id, started_at):
            return
        known = self._suspects.get(node.instance_id)
        if known is None or known.reason is not reason:
            state = "slow" if reason is Reason.ATTEMPT_TIMED_OUT else "down"
            log.info("node is asked last for now", node=node.instance_id, state=state, detail=detail)
            self._suspects[node.instance_id] = Suspicion(reason, detail)
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
        """Probe until it answers."""
        while True:
            pause_s = self._pause_s.get(node.instance_id, self._interval_s)
            self._pause_s[node.instance_id] = min(pause_s * 2, self._interval_max_s)
            await asyncio.sleep(pause_s)
            if await self._probe(node, self._probe_timeout_s):
                break
        self._clear(node.instance_id, "it answered a probe")

    def _clear(self, instance_id: str, why: str) -> None:
        self._suspects.pop(instance_id, None)
        self._cleared_at[instance_id] = asyncio.get_running_loop().time()
        watched = self._probes.pop(instance_id, None)
        if watched is not None and watched[1] is not asyncio.current_task():
            watched[1].cancel()
        log.info("node is asked in its turn again", node=instance_id, why=why)
