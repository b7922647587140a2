"""Callers of routers and nodes, and the rules that allow it: each process decides with the rules it read last.

The rules change all the time. That, and the calls made here, have a randomness of their own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from statehouse.errors import LookupFailure
from statehouse.security.certificates import NONE_REVOKED
from statehouse.security.denial import denial_of
from statehouse.security.gate import RELOAD_INTERVAL_S
from statehouse.security.identities import KnownCaller, KnownCallers
from statehouse.security.rules_file import parsed_rules
from statehouse.security.shown import NOTHING_SHOWN, Shown
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.checks import ANONYMOUS, GUEST, OTHER, READER, ROUTER, STRANGER, Checks
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode
    from tests.simulation.router import SimulatedRouter

QUERY: Final = "/statehouse.v1.QueryService/"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_METHODS: Final = (
    *(f"{QUERY}{name}" for name in ("Get", "BatchGet", "Scan", "Watch")),
    "/statehouse.v1.FleetService/GetFleet",
    "/statehouse.v1.NodeService/Drain",
    HEALTH_CHECK,
)
_CALLERS: Final = (READER, ROUTER, GUEST, OTHER, STRANGER, ANONYMOUS)
_SHOWN: Final[Mapping[str, Shown]] = MappingProxyType(
    {name: Shown(authorization=f"Bearer {name}") for name in _CALLERS} | {ANONYMOUS: NOTHING_SHOWN}
)
_CALLS_EVERY_S: Final = 0.2
_CHANGES_EVERY_S: Final = 4.0


class RulesFile:
    """The rules as they are in all files now; readers may always read, guests now and then."""

    def __init__(self, world: World, checks: Checks, settings: SimulationSettings) -> None:
        self._world, self._checks = world, checks
        self._stores = [store.name for store in settings.stores]
        self._rng = random.Random(f"rules of {world.seed}")
        self._changes = 0
        self._change()

    def _change(self) -> None:
        rng = self._rng
        self._world.loop.call_later(rng.expovariate(1 / _CHANGES_EVERY_S), self._change)
        guest_may = rng.random() < 0.5
        self._changes += 1
        # What a reader may read is said in several ways, and next to a name that changes each time.
        mine = rng.choice((["*"], ["s*"], self._stores, [*self._stores, "elsewhere"]))
        entries = [
            _entry(READER, "reader", mine),
            _entry(ROUTER, "router"),
            _entry(OTHER, "reader", ["elsewhere"]),
            _entry(f"passing-{self._changes % 10}", "operator"),
        ]
        if guest_may:
            entries.append(_entry(GUEST, "reader", self._stores))
        self.known = _known("".join(entries))
        self._checks.rules_changed(guest_may=guest_may)
        self._world.note("RULES", "changed: a guest {}", "may read" if guest_may else "may do nothing")


def _entry(name: str, role: str, stores: Sequence[str] = ()) -> str:
    token = hashlib.sha256(name.encode()).hexdigest()
    lines = ["[[identity]]", f'name = "{name}"', f'token_sha256 = ["{token}"]', f'roles = ["{role}"]']
    return "\n".join([*lines, *([f"stores = {list(stores)}"] if stores else []), ""])


@lru_cache(1_000)
def _known(rules: str) -> KnownCallers:
    return KnownCallers(parsed_rules(rules.encode()), None, NONE_REVOKED)


class SimulatedGate:
    """A process' gate: the real decision, with the rules that it has read last. Real gates read them as often."""

    def __init__(self, process: Process, rules: RulesFile, checks: Checks) -> None:
        self._process, self._rules, self._checks = process, rules, checks
        self._callers: dict[str, KnownCaller] = {}
        self._look()

    def _look(self) -> None:
        self._process.later(RELOAD_INTERVAL_S, self._look)
        self._known = self._rules.known
        self._callers.clear()

    def admit(self, who: str, method: str, request: bytes, *, is_forwarded: bool = False) -> None:
        """Return if a caller may make this call, and have the decision held against what is right.

        `is_forwarded`: whether the request says that a router has sent it on.

        Raises:
            LookupFailure: they may not.

        """
        failure = self._refusal(who, method, request)
        self._checks.decided(self._process, who, method, is_forwarded=is_forwarded, is_allowed=failure is None)
        if failure is not None:
            raise failure

    def _refusal(self, who: str, method: str, request: bytes) -> LookupFailure | None:
        caller = self._callers.get(who)
        if caller is None:
            try:
                caller = self._known.identify(_SHOWN[who], self._process.world.time())
            except LookupFailure as failure:
                return failure
            self._callers[who] = caller
        denial = denial_of(caller, method, request)
        return None if denial is None else denial.failure(caller.name)


class Callers:
    """Everybody calls everything, all the time. Only the decision is made: who may look up is shown by lookups."""

    def __init__(
        self,
        world: World,
        settings: SimulationSettings,
        routers: Sequence[SimulatedRouter],
        nodes: Mapping[str, SimulatedNode],
    ) -> None:
        self._world, self._routers, self._nodes = world, routers, nodes
        self._stores = [store.name for store in settings.stores]
        self._rng = random.Random(f"callers of {world.seed}")

    def start(self) -> None:
        rng = self._rng
        self._world.loop.call_later(rng.expovariate(1 / _CALLS_EVERY_S), self.start)
        nodes = [node for _, node in sorted(self._nodes.items()) if node.is_alive and node.is_listening]
        processes: list[SimulatedRouter | SimulatedNode] = [*self._routers, *nodes]
        process = rng.choice(processes)
        who, method = rng.choice(_CALLERS), rng.choice(_METHODS)
        hops = rng.choice((0, 0, 1))
        get = query_service_pb2.GetRequest(
            store=rng.choice(self._stores), forwarding=types_pb2.Forwarding(epoch=1, hops=hops)
        )
        # What other requests have of it is in the same fields.
        request = query_service_pb2.BatchGetRequest(requests=[get]) if method.endswith("/BatchGet") else get
        if not process.is_frozen:
            try:
                process.gate.admit(who, method, request.SerializeToString(), is_forwarded=hops > 0)
            except LookupFailure as failure:
                self._world.counts[f"denied: {failure.reason.name}"] += 1
            else:
                self._world.counts[f"allowed: {who}"] += 1
