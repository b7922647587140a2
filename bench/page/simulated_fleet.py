"""A router and nodes that only say how they do: a fleet of any size, for the page to show."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc.aio

from statehouse.v1 import (
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    types_pb2,
)

Fleet = fleet_service_pb2.GetFleetResponse
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How large a fleet is; each task has an active and a standby."""

    partitions: int
    nodes: int
    stores: int = 1


class SimulatedFleet(fleet_service_pb2_grpc.FleetServiceServicer):
    """A router's FleetService, with nodes that answer at ports of their own. `fleet` may be replaced at any time."""

    def __init__(self, size: FleetSize) -> None:
        self._size, self._began_at = size, time.monotonic()
        self.fleet = Fleet()
        self.target = ""
        self._servers: list[grpc.aio.Server] = []
        self._held: tuple[Fleet, dict[str, list[tuple[str, fleet_service_pb2.ReplicaReport]]]] | None = None
        self.changed = asyncio.Event()

    async def start(self) -> None:
        """Listen."""
        names = [f"n{number:03}" for number in range(self._size.nodes)]
        ports = [
            await self._serve(_Node(self, name))  # type: ignore[abstract]  # nothing else is asked
            for name in names
        ]
        self.fleet = _fleet(self._size, dict(zip(names, ports, strict=True)))
        server = grpc.aio.server()
        fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(self, server)
        self.target = f"{_HOST}:{server.add_insecure_port(f'{_HOST}:0')}"
        self._servers.append(server)
        await server.start()

    async def close(self) -> None:
        """End."""
        await asyncio.gather(*(server.stop(0) for server in self._servers))

    def change(self) -> None:
        """Tell watchers that `fleet` has been replaced."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def GetFleet(self, _request: fleet_service_pb2.GetFleetRequest, _context: object) -> Fleet:  # noqa: N802 - the service's name
        """Return the fleet."""
        return self.fleet

    async def ListChangelogs(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.ListChangelogsRequest, _context: object
    ) -> fleet_service_pb2.ListChangelogsResponse:
        """Return the changelogs: somebody has changed a setting of the first."""
        response = fleet_service_pb2.ListChangelogsResponse()
        for number, store in enumerate(self.fleet.stores):
            changelog = response.changelogs.add(store=store.name, topic=store.changelog_topic, compared_age_ms=4_000)
            count = str(store.partition_count)
            changelog.settings.add(name="partitions", wanted=count, found=count)
            changelog.settings.add(name="cleanup.policy", wanted="compact", found="compact" if number else "delete")
        return response

    async def WatchFleet(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.WatchFleetRequest, _context: object
    ) -> AsyncIterator[fleet_service_pb2.WatchFleetResponse]:
        """Send the fleet each time it changes."""
        while True:
            changed = self.changed
            yield fleet_service_pb2.WatchFleetResponse(fleet=self.fleet)
            await changed.wait()

    async def _serve(self, node: _Node) -> int:
        server = grpc.aio.server()
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(node, server)
        port = server.add_insecure_port(f"{_HOST}:0")
        self._servers.append(server)
        await server.start()
        return port

    def held_by(self, name: str) -> list[tuple[str, fleet_service_pb2.ReplicaReport]]:
        """Return the tasks that a node holds."""
        if self._held is None or self._held[0] is not self.fleet:
            held: defaultdict[str, list[tuple[str, fleet_service_pb2.ReplicaReport]]] = defaultdict(list)
            for task in self.fleet.tasks:
                for report in task.replicas:
                    held[report.instance_id].append((task.task, report))
            self._held = self.fleet, held
        return self._held[1][name]

    def lookups(self, partition: int) -> int:
        """Return how many lookups a partition has had: some are asked much more than others."""
        return int((time.monotonic() - self._began_at) * (2_000 / (1 + partition % 97)))


class _Node(node_service_pb2_grpc.NodeServiceServicer):
    def __init__(self, fleet: SimulatedFleet, name: str) -> None:
        self._fleet, self._name = fleet, name

    async def GetNode(  # noqa: N802 - the service's name
        self, _request: node_service_pb2.GetNodeRequest, _context: object
    ) -> node_service_pb2.GetNodeResponse:
        """Say how the node does."""
        fleet = self._fleet.fleet
        node = next(each for each in fleet.nodes if each.host.instance_id == self._name)
        stores = [store.name for store in fleet.stores]
        return node_service_pb2.GetNodeResponse(
            host=node.host,
            incarnation=node.incarnation,
            state=node.state,
            epoch=fleet.epoch,
            tasks=[self._task(task, report, stores) for task, report in self._fleet.held_by(self._name)],
        )

    def _task(
        self, task: str, report: fleet_service_pb2.ReplicaReport, stores: list[str]
    ) -> node_service_pb2.TaskReplica:
        partition = int(task.partition("_")[2])
        is_active = report.role == types_pb2.REPLICA_ROLE_ACTIVE
        return node_service_pb2.TaskReplica(
            task=task,
            role=report.role,
            state=report.state,
            stores=[
                node_service_pb2.StoreReplica(
                    store=store,
                    partition=partition,
                    position=report.position,
                    end_offset=report.position + report.lag,
                    lag=report.lag,
                    staleness_ms=20,
                    restored_from=0,
                    lookups=self._fleet.lookups(partition) if is_active else 0,
                )
                for store in stores
            ],
        )


def _fleet(size: FleetSize, ports: dict[str, int]) -> Fleet:
    return Fleet(
        application_id="simulated",
        epoch=1,
        reason="start",
        stores=[
            fleet_service_pb2.StoreInfo(
                name=f"store-{number}",
                kind="key-value",
                key_serde="string",
                value_serde="json",
                changelog_topic=f"simulated-store-{number}-changelog",
                partition_count=size.partitions,
                sub_topology=0,
                partitioner="murmur2",
            )
            for number in range(size.stores)
        ],
        nodes=[
            fleet_service_pb2.NodeInfo(
                host=types_pb2.Host(instance_id=name, host=_HOST, port=port),
                incarnation="1",
                rack=f"rack-{number % 3}",
                state="RUNNING",
                version="0",
                epoch=1,
                heartbeat_age_ms=300,
                reachable=True,
                capacity=1,
            )
            for number, (name, port) in enumerate(ports.items())
        ],
        tasks=_tasks(size, list(ports)),
    )


def _tasks(size: FleetSize, names: list[str]) -> Iterator[fleet_service_pb2.TaskInfo]:
    for partition in range(size.partitions):
        active, standby = names[partition % len(names)], names[(partition + 1) % len(names)]
        yield fleet_service_pb2.TaskInfo(
            task=f"0_{partition}",
            active=active,
            standbys=[standby] if standby != active else [],
            reason="start",
            replicas=[
                fleet_service_pb2.ReplicaReport(
                    instance_id=name, role=role, state="running", position=1_000_000, lag=partition % 7
                )
                for name, role in (
                    (active, types_pb2.REPLICA_ROLE_ACTIVE),
                    (standby, types_pb2.REPLICA_ROLE_STANDBY),
                )
            ],
        )


@contextlib.asynccontextmanager
async def simulated_fleet(size: FleetSize) -> AsyncIterator[SimulatedFleet]:
    """Run a simulated fleet."""
    fleet = SimulatedFleet(size)  # type: ignore[abstract]  # nothing else is asked
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


@contextlib.contextmanager
def simulated_fleet_process(size: FleetSize) -> Iterator[str]:
    """Run a simulated fleet in a process of its own; yield the address of its router."""
    numbers = map(str, (size.partitions, size.nodes, size.stores))
    command = [sys.executable, "-m", "bench.page.simulated_fleet", *numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            target = process.stdout.readline().strip()
            if not target:
                raise RuntimeError("the simulated fleet has ended; its own message says why")
            yield target
        finally:
            process.terminate()


async def _run(size: FleetSize) -> None:
    async with simulated_fleet(size) as fleet:
        print(fleet.target, flush=True)  # noqa: T201 - for the process that started it
        # It ends with the process that has started it.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_run(FleetSize(*map(int, sys.argv[1:]))))
