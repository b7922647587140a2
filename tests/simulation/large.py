"""`python -m tests.simulation.large`: what the control plane of a huge fleet costs, without processes or Kafka.

The controller's real core plans and its assignments are encoded as in the topic; heartbeats are encoded as nodes write
them; routers' tables and the messages of WatchFleet are made of both. So times are those of this machine's Python, and
bytes are exact. The store holds nothing: tasks are caught up as soon as they are assigned.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.core import OwnershipCore
from router.fleet.current_table import CurrentTable
from router.fleet.table import compile_table
from router.fleet.tracker import FleetTracker
from router.fleet_api.describe import describe_fleet
from statehouse.contract.assignment import Assignment, AssignmentReader, encode
from statehouse.contract.membership import Member, decode_member, encode_member
from tests.support.members import FakeMember
from tests.support.settings import ownership

STORE: Final = "scores"
_HEARTBEAT_S: Final = 1.0
_SETTLES_WITHIN: Final = 5_000
# Two hand-overs' linger: nothing follows any more.
_QUIET_TICKS: Final = 60
# A broker's default for a record.
RECORD_MAX_BYTES: Final = 1_048_588

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """What came of something that happened to the fleet.

    Attributes:
        epochs: that were published until it was at rest.
        plan_s: the longest plan.
        encode_s: the longest encoding of an epoch.
        written_bytes: of all epochs' records.
        largest_bytes: of one record; the controller compresses it by zstd, which does no worse than zlib here.
        moved: actives that moved.

    """

    what: str
    epochs: int
    plan_s: float
    encode_s: float
    written_bytes: int
    largest_bytes: int
    moved: int


@dataclass
class LargeFleet:
    """Members that do immediately what is published, and the controller's core; a tick is a second."""

    partitions: int
    core: OwnershipCore = field(init=False)
    members: dict[str, FakeMember] = field(default_factory=dict)
    joined: int = 0
    now: float = 1_000.0

    def __post_init__(self) -> None:
        """Declare the store."""
        settings = ownership(heartbeat_interval_ms=1_000, session_timeout_ms=10_000, initial_rebalance_delay_ms=1_000)
        self.core = OwnershipCore(settings, "large")
        self.core.restore(None)
        self.core.declare([StoreDeclaration(STORE, "leaderboard", self.partitions, f"app-{STORE}-changelog")])
        self.core.start(self.now)

    def join(self, count: int) -> None:
        """Have members join."""
        for _ in range(count):
            name = f"node-{self.joined:04d}"
            self.members[name] = FakeMember(name, STORE)
            self.joined += 1

    def settled(self, what: str) -> Change:
        """Let time pass until nothing is published any more."""
        epochs = written = largest = moved = quiet = 0
        plan_s = encode_s = 0.0
        changed: set[str] = set()
        for _ in range(_SETTLES_WITHIN):
            self.now += _HEARTBEAT_S
            before = self.core.assignment
            for member in self.members.values():
                if member.name in changed or not member.epoch:
                    member.follow(before)
                member.epoch = before.epoch
                self.core.heartbeat(member.beat(), self.now)
            proposed, took_s = _timed(lambda: self.core.tick(self.now))
            if proposed is None:
                quiet += 1
                if quiet == _QUIET_TICKS:
                    return Change(what, epochs, plan_s, encode_s, written, largest, moved)
                continue
            (complete, records), encoding_s = _timed(partial(encode, before, proposed))
            sizes = [len(key) + len(value or b"") for key, value in records]
            compressed = [len(zlib.compress(value or b"", 1)) for _, value in records]
            self.core.published(complete, self.now)
            changed = _whose_tasks_changed(before, complete)
            quiet, epochs, written = 0, epochs + 1, written + sum(sizes)
            largest, plan_s, encode_s = max(largest, *compressed), max(plan_s, took_s), max(encode_s, encoding_s)
            moved += sum(
                1
                for task, holders in complete.tasks.items()
                if task in before.tasks and before.tasks[task].active not in {None, holders.active}
            )
        raise AssertionError(f"{what}: epochs follow without an end")

    def changes(self, nodes: int) -> Iterator[Change]:
        """Yield what happens when the fleet comes up, when a node dies, and when one joins."""
        self.join(nodes)
        yield self.settled(f"{nodes} nodes come up")
        del self.members["node-0000"]
        yield self.settled("a node dies")
        self.join(1)
        yield self.settled("a node joins")


def _whose_tasks_changed(before: Assignment, after: Assignment) -> set[str]:
    """Return the nodes that hold something else than before, or hold it in another role."""
    return {
        node
        for task, holders in after.tasks.items()
        if (held := before.tasks.get(task)) != holders
        for node in (*holders.replicas, *(held.replicas if held else ()))
    }


@dataclass(frozen=True, slots=True)
class Readers:
    """What readers of the control topics have to do in a fleet at rest.

    Attributes:
        heartbeat_bytes: of one node's heartbeat.
        read_s: to read one.
        snapshot_s: to read a whole assignment from its records.
        first_table_s: to compile a router's first table.
        next_table_s: to compile the next one, after one node's heartbeat.
        watch_bytes: of a message of WatchFleet.
        watch_s: to make it, once for all watchers.

    """

    heartbeat_bytes: int
    read_s: float
    snapshot_s: float
    first_table_s: float
    next_table_s: float
    watch_bytes: int
    watch_s: float


def readers(fleet: LargeFleet) -> Readers:
    """Measure what nodes, routers and clients do with what the controller and the nodes write."""
    assignment = fleet.core.assignment
    members: dict[str, Member] = {name: member.beat() for name, member in fleet.members.items()}
    name = next(iter(members))
    key, value = encode_member(members[name])
    _, read_s = _timed(lambda: decode_member(key, value, 0, 0))
    _, records = encode(Assignment(), assignment)
    _, snapshot_s = _timed(lambda: [AssignmentReader().feed(*record) for record in records])
    table, first_s = _timed(lambda: compile_table(assignment, members))
    members[name] = fleet.members[name].beat()
    table, next_s = _timed(lambda: compile_table(assignment, members, table))
    tracker = FleetTracker(CurrentTable(), lambda _table: None, session_timeout_s=10.0)
    message, watch_s = _timed(
        lambda: describe_fleet("app", table, tracker, {}, lambda _spec: False, lambda _spec: None).SerializeToString()
    )
    return Readers(len(key) + len(value), read_s, snapshot_s, first_s, next_s, len(message), watch_s)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    found = work()
    return found, time.perf_counter() - started


def main() -> int:
    """Print what each change costs, and what readers do."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.large", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000, help="(default: 10000)")
    parser.add_argument("--nodes", type=int, default=200, help="(default: 200)")
    options = parser.parse_args()
    fleet = LargeFleet(options.partitions)
    for change in fleet.changes(options.nodes):
        print(change, flush=True)
        if change.largest_bytes > RECORD_MAX_BYTES:
            print(f"a record of {change.largest_bytes} bytes is larger than a broker takes ({RECORD_MAX_BYTES})")
    found = readers(fleet)
    print(found)
    per_s = options.nodes * found.heartbeat_bytes / _HEARTBEAT_S
    print(f"members topic: {per_s / 1e3:.0f} kB/s written, {per_s / 1e3:.0f} kB/s to each reader")
    print(
        f"reading them: {options.nodes * found.read_s / _HEARTBEAT_S:.2f} of a core of each node, router and controller"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
