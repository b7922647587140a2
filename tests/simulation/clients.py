"""Clients: lookups of keys that exist and keys that don't, with every kind of bound, through the routers.

A lookup may fail only if nobody could have answered it: if a replica in the router's table ran, undisturbed and
reachable, for as long as the lookup took, the lookup must be answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.fleet.table import RoutingTable
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role, TaskId
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.checks import Checks
from tests.simulation.kafka import Kafka
from tests.simulation.node import SimulatedNode
from tests.simulation.router import SimulatedRouter
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, LONGEST_DELAY_S, World

TIMEOUT_S = 4.0
ABSENT = "absent"
_SESSIONS = 3
_SESSIONS_SHARE = 0.2
# How many are asked at the same time.
_AT_ONCE = (1, 1, 1, 5)

BOUNDS = (
    types_pb2.Freshness(),
    types_pb2.Freshness(),
    types_pb2.Freshness(),
    types_pb2.Freshness(active_only=True),
    types_pb2.Freshness(max_lag=5),
    types_pb2.Freshness(max_staleness_ms=1_500),
    types_pb2.Freshness(max_staleness_ms=10_000, max_lag=1_000),
)


@dataclass(frozen=True)
class Lookup:
    """A key to look for, and within which bound."""

    store: str
    key: str
    bound: types_pb2.Freshness

    def request(self) -> bytes:
        return query_service_pb2.GetRequest(
            store=self.store,
            key=types_pb2.Key(text=self.key),
            freshness=self.bound if self.bound.ListFields() else None,
            raw=True,
        ).SerializeToString()

    def __str__(self) -> str:
        bound = ", ".join(f"{name.name}={value}" for name, value in self.bound.ListFields())
        return f"{self.store}/{self.key}" + (f" ({bound})" if bound else "")


class Clients:
    """Looks keys up all the time."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        settings: SimulationSettings,
        routers: list[SimulatedRouter],
        nodes: dict[str, SimulatedNode],
    ) -> None:
        self._world, self._kafka, self._checks, self._settings = world, kafka, checks, settings
        self._routers, self._nodes = routers, nodes
        self._is_on = True
        self._sessions: list[dict[tuple[str, int], int]] = [{} for _ in range(_SESSIONS)]

    def start(self) -> None:
        self._next()

    def stop(self) -> None:
        self._is_on = False

    def _next(self) -> None:
        if self._is_on:
            rng = self._world.rng
            self._world.loop.call_later(rng.expovariate(self._settings.lookups_per_s), self._next)
            router = rng.choice(self._routers)
            # Lookups for a node that is being asked already go together.
            for _ in range(rng.choice(_AT_ONCE) if router.is_ready else 0):
                self._world.task(self._in_session(router) if rng.random() < _SESSIONS_SHARE else self._alone(router))

    async def _alone(self, router: SimulatedRouter) -> None:
        await self.look_up(router, self._drawn())

    async def _in_session(self, router: SimulatedRouter) -> None:
        """Look up as a caller that carries the positions it has seen, as the client's sessions do."""
        seen, lookup = self._world.rng.choice(self._sessions), self._drawn()
        bound = types_pb2.Freshness()
        for (store, partition), position in seen.items():
            bound.at_least.positions.add(store=store, partition=partition, position=position)
        response = await self.look_up(router, Lookup(lookup.store, lookup.key, bound))
        if isinstance(response, query_service_pb2.GetResponse):
            place = (lookup.store, response.replica.partition)
            seen[place] = max(seen.get(place, 0), response.replica.position)
            self._world.counts["lookups of sessions"] += 1

    def _drawn(self) -> Lookup:
        rng = self._world.rng
        store = rng.choice(self._settings.stores)
        number = rng.randrange(self._settings.keys * store.partition_count)
        key = f"{ABSENT}{number}" if rng.random() < 0.1 else f"k{number}"
        return Lookup(store.name, key, rng.choice(BOUNDS))

    async def look_up(self, router: SimulatedRouter, lookup: Lookup) -> query_service_pb2.GetResponse | LookupFailure:
        """Look a key up; a failure that nothing excuses breaks a rule."""
        world, began_at = self._world, self._world.now
        world.counts["lookups"] += 1
        before = router.tables.current()
        try:
            response = await router.get(lookup.request(), TIMEOUT_S)
        except LookupFailure as failure:
            world.counts["lookups failed"] += 1
            world.note(router.name, "{} failed: {}", lookup, failure)
            witness = self._witness(router, lookup, before, began_at)
            if witness is not None:
                world.break_rule(
                    "a lookup that a replica could answer does not fail",
                    f"{router.name}, {lookup}, begun at {began_at:.3f}: {witness.name} could have answered; {failure}",
                )
            return failure
        world.counts["found" if response.found else "not found"] += 1
        stamp = response.replica
        if not stamp.HasField("position"):
            world.break_rule("what a caller gets is a node's answer", f"{router.name}, {lookup}: {response}")
        world.note(
            router.name,
            "{} {} by {} as {} at epoch {}, position {}",
            lookup,
            "found" if response.found else "not found",
            stamp.host.host,
            Role(stamp.role).name,
            stamp.epoch,
            stamp.position,
        )
        if stamp.role != types_pb2.REPLICA_ROLE_ACTIVE:
            world.counts["answers as standby"] += 1
        return response

    def _witness(
        self, router: SimulatedRouter, lookup: Lookup, before: RoutingTable, since: float
    ) -> SimulatedNode | None:
        """Return a node that could have answered all the time."""
        bound, after = lookup.bound, router.tables.current()
        if bound.HasField("at_least"):
            return None  # a node that could answer may have less than the session has seen
        spec = before.stores[lookup.store].spec
        partition = partition_for(lookup.key.encode(), spec.partition_count)
        task = TaskId(spec.sub_topology, partition)
        tables = (before, after)
        for replica in before.stores[lookup.store].partitions[partition].replicas:
            if replica.node is None:
                continue
            process = self._nodes.get(replica.node.host)
            if process is None or not self._could_answer(process, router, task, since):
                continue
            if not self._has_first_batch(process, lookup.store, partition, since):
                continue
            if not all(self._is_named(table, lookup.store, partition, process) for table in tables):
                continue
            if bound.active_only and not self._was_active(process, task, tables, since):
                continue
            is_bounded = bound.HasField("max_lag") or bound.HasField("max_staleness_ms")
            if is_bounded and not self._knew_the_end(process, task, since):
                continue
            return process
        return None

    def _could_answer(self, process: SimulatedNode, router: SimulatedRouter, task: TaskId, since: float) -> bool:
        return (
            process.is_alive
            and process.is_listening
            and not process.is_frozen
            and process.undisturbed_since < since
            and process.running_since.get(task, since) < since
            and self._world.net.is_well(process.machine, router.machine, since)
        )

    def _has_first_batch(self, process: SimulatedNode, store: str, partition: int, since: float) -> bool:
        """Whether it has had the whole first batch, and read that it is one, all the time; if written in this run."""
        if self._settings.first_records:
            return True
        log = self._kafka.changelogs[store, partition]
        replica = process.replicas[log.task].of(log.spec, partition)
        return (
            log.first_batch_end is not None
            and replica is not None
            and replica.position >= log.first_batch_end
            and process.tasks.without_first_batch_until.get((store, partition), 0.0) < since
            and process.first_heard_at.get(store, since) < since
        )

    @staticmethod
    def _is_named(table: RoutingTable, store: str, partition: int, process: SimulatedNode) -> bool:
        """Whether the table has this process at this address as one of the partition's replicas."""
        for replica in table.stores[store].partitions[partition].replicas:
            if replica.instance_id == process.instance_id:
                return replica.node is not None and replica.node.host == process.machine
        return False

    def _knew_the_end(self, process: SimulatedNode, task: TaskId, since: float) -> bool:
        """Whether Kafka must have told it where the log ends, so that it keeps any of `BOUNDS`.

        It asks once an interval, and as soon as it thaws; the answer takes a message each way. `BOUNDS` are wider
        than two intervals, and it reads what it learns of.
        """
        answered_s = 2 * LONGEST_DELAY_S
        asked_and_answered_s = self._settings.confirm_interval_s + answered_s
        return (
            process.undisturbed_since <= since - answered_s
            and process.running_since[task] <= since - asked_and_answered_s
            and self._world.net.is_well(process.machine, KAFKA, since - asked_and_answered_s)
        )

    def _was_active(
        self, process: SimulatedNode, task: TaskId, tables: tuple[RoutingTable, RoutingTable], since: float
    ) -> bool:
        """Whether it was the confirmed active for everybody all the time."""
        return (
            process.active_since.get(task, since) < since
            and all(table.assignment.tasks[task].active == process.instance_id for table in tables)
            and all(table.epoch <= process.ownership.epoch for table in tables)
            and process.replicas[task].role is Role.ACTIVE
            and self._world.net.is_well(process.machine, KAFKA, since - 2 * self._settings.session_timeout_s)
            and self._checks.published_at < since - 1.0
            and process.undisturbed_since < since - 2.0
        )
