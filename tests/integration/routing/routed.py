"""A fleet whose routes are put in words: which nodes were asked, in which order, and what each said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId
from statehouse.errors import LookupFailure, reason_name
from statehouse.local.ports import free_port
from statehouse.v1 import errors_pb2, fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.fault_proxy import BOTH, FaultProxy
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import Scrape, scrape
from tests.support.polling import poll_until

UNHEDGED: Final = {"attempt_timeout_ms": 2_000, "hedge_min_ms": 2_000}
"""A router that asks one after the other, and gives each more time than a busy machine needs."""

ACTIVE, STANDBY = types_pb2.REPLICA_ROLE_ACTIVE, types_pb2.REPLICA_ROLE_STANDBY
_OUTCOMES: Final = {
    fleet_service_pb2.ATTEMPT_OUTCOME_ANSWERED: "answered",
    fleet_service_pb2.ATTEMPT_OUTCOME_OVERTAKEN: "overtaken",
}


class Links:
    """The ways of processes to Kafka, by the processes' names."""

    def __init__(self, proxies: Mapping[str, FaultProxy]) -> None:
        self._proxies = proxies

    def bootstrap(self, name: str) -> str:
        """Return the address by which a process that is to be cut off finds Kafka."""
        return self._proxies[name].address

    def cut(self, *names: str) -> None:
        """Let nothing come or go until healed."""
        for name in names:
            self._proxies[name].stall(*BOTH)

    def heal(self) -> None:
        """Restore all; nothing is lost."""
        for proxy in self._proxies.values():
            proxy.heal()


@dataclass(frozen=True)
class Story:
    """A lookup as the router tells it.

    `asked` has an item for each call to a node: "a UNREACHABLE" or "b answered"; the item of a hedge says so first.
    `candidates` is what was known of each before, as "a usable" or "b NOT_ACTIVE", in the order to ask them.
    """

    asked: list[str]
    candidates: list[str]
    epoch: int
    told: fleet_service_pb2.ExplainGetResponse

    @property
    def stamp(self) -> types_pb2.ReplicaStamp:
        """The node that answered, and as what."""
        assert self.told.HasField("response"), self.told.error
        assert self.told.response.found, "the store holds the key"
        return self.told.response.replica

    @property
    def answer(self) -> tuple[str, int]:
        """The node that answered, and the role it claims."""
        return self.stamp.host.instance_id, self.stamp.role

    @property
    def error(self) -> errors_pb2.LookupError:
        """The failure."""
        assert self.told.HasField("error"), self.told.response
        return self.told.error

    @property
    def failure(self) -> str:
        """The failure's reason."""
        return reason_name(self.error.reason)


class RoutedFleet:
    """Nodes and a router on one assignment, which the tests write. Keys of each partition hold one value."""

    def __init__(self, fleet: Fleet, router: ServerProcess, metrics_port: int) -> None:
        self.fleet, self.router = fleet, router
        self.nodes: dict[str, ServerProcess] = {}
        self._metrics_port = metrics_port

    @classmethod
    def start(cls, fleet: Fleet, *names: str, **router_options: object) -> RoutedFleet:
        """Start a router with these options, and nodes."""
        fleet.put({fleet.keys_in(partition)[0]: "value" for partition in range(fleet.partitions)})
        metrics_port = free_port()
        routed = cls(fleet, fleet.router(metrics_port=metrics_port, **router_options), metrics_port)
        for name in names:
            routed.node(name)
        return routed

    def node(self, name: str, **options: object) -> ServerProcess:
        """Start a node."""
        self.nodes[name] = self.fleet.node(name, **options)
        return self.nodes[name]

    def place(self, active: str | None, *standbys: str) -> int:
        """Give all partitions to these, and wait until the nodes and the router know and all is restored."""
        epoch = self.assign(active, *standbys)
        self.wait_settled()
        return epoch

    def assign(self, active: str | None, *standbys: str) -> int:
        """Publish an epoch that gives all partitions to these; return it."""
        return self.fleet.assign(*[TaskAssignment(active, standbys)] * self.fleet.partitions)

    def wait_settled(self) -> None:
        """Wait until nodes and router agree on the newest epoch, and the router knows of no doubt about anybody."""
        held = {name for holders in self.fleet.assignment.tasks.values() for name in holders.replicas}
        self.fleet.wait_running(self.nodes[name] for name in held)
        poll_until(lambda: self._is_known(held), 30, "the router to know that all is well")
        for partition in range(self.fleet.partitions):
            active = self.fleet.assignment.tasks[TaskId(0, partition)].active
            if active is not None:
                poll_until(partial(self._is_confirmed, active, partition), 30, f"{active} to be in touch with Kafka")

        poll_until(lambda: all(map(self._knows_its_age, held)), 30, "every copy to know how stale it is")

    def _knows_its_age(self, name: str) -> bool:
        stores = [store for task in self.nodes[name].node().tasks for store in task.stores]
        return all(store.HasField("staleness_ms") for store in stores)

    def _is_confirmed(self, name: str, partition: int) -> bool:
        """Whether a node claims to be active: one that a busy machine kept from Kafka for a while does not."""
        return self.nodes[name].get(self.key(partition)).replica.role == ACTIVE

    def _is_known(self, held: set[str]) -> bool:
        place = self.located()
        usable = {candidate.host.instance_id for candidate in place.candidates if candidate.eligible}
        return place.route.epoch == self.fleet.assignment.epoch and usable == held

    def located(self, partition: int = 0) -> fleet_service_pb2.LocateKeyResponse:
        """Return where a partition is by the router's table; an empty one while it has none."""
        request = fleet_service_pb2.LocateKeyRequest(store=STORE, key=types_pb2.Key(text=self.key(partition)))
        try:
            return ServerProcess.call(self.router.fleet.LocateKey, request)
        except LookupFailure:
            return fleet_service_pb2.LocateKeyResponse()

    def key(self, partition: int = 0) -> str:
        """Return the key that a partition has."""
        return self.fleet.keys_in(partition)[0]

    def request(self, partition: int = 0, **freshness: Any) -> query_service_pb2.GetRequest:
        """Return the lookup of a partition's key."""
        return query_service_pb2.GetRequest(
            store=STORE, key=types_pb2.Key(text=self.key(partition)), freshness=types_pb2.Freshness(**freshness)
        )

    def ask(self, name: str, forwarding: types_pb2.Forwarding, **freshness: Any) -> query_service_pb2.GetResponse:
        """Send the lookup of partition 0 to a node, as a router does."""
        request = self.request(**freshness)
        request.forwarding.CopyFrom(forwarding)
        return ServerProcess.call(self.nodes[name].query.Get, request)

    def look_up(self, partition: int = 0, *, timeout: float = 20.0, **freshness: Any) -> Story:
        """Look a partition's key up, and have it told."""
        request = fleet_service_pb2.ExplainGetRequest(lookup=self.request(partition, **freshness))
        told = ServerProcess.call(self.router.fleet.ExplainGet, request, timeout)
        return Story(list(map(_attempt, told.attempts)), list(map(_candidate, told.candidates)), told.route.epoch, told)

    def look_up_at_once(self, count: int) -> list[Story]:
        """Look the same key up by many calls at the same time."""
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda _: self.look_up(), range(count)))

    def metrics(self) -> Scrape:
        """Return what the router counts."""
        return scrape(self._metrics_port)


def _attempt(attempt: fleet_service_pb2.LookupAttempt) -> str:
    said = _OUTCOMES.get(attempt.outcome) or reason_name(attempt.reason)
    return f"{'beside it ' if attempt.hedge else ''}{attempt.host.instance_id} {said}"


def _candidate(candidate: errors_pb2.Candidate) -> str:
    return f"{candidate.host.instance_id} {'usable' if candidate.eligible else reason_name(candidate.reason)}"


def verdicts(error: errors_pb2.LookupError) -> Iterator[str]:
    """Return what a failed lookup says of each candidate."""
    return map(_candidate, error.candidates)
