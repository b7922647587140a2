"""A router with fake nodes of two versions of an application, and callers that look for what should never be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc.aio

from router.version_core import VersionCore
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.version_names import FIRST
from statehouse.contract.versions import Versions
from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, start_fleet
from tests.unit.router.fleets import STORE, assignment, member, report

KEYS: Final = tuple(f"key-{number:02}" for number in range(24))
PARTITIONS: Final = {FIRST: 2, "v2": 5}
DEPLOYED: Final = Versions().deployed("v2")


async def two_versions(**options: object) -> Fleet:
    """Start a router, nodes a and b with the first version, and c and d with version v2, which has more partitions."""
    fleet = await start_fleet(("a", "b"), **options)
    await _fill(fleet, fleet.router.first, ("a", "b"), FIRST)
    fleet.router.versions.take(DEPLOYED)
    (beside,) = [core for core in fleet.router.versions if core.version == "v2"]
    await _fill(fleet, beside, ("c", "d"), "v2")
    return fleet


async def _fill(fleet: Fleet, core: VersionCore, names: Sequence[str], version: str) -> None:
    count = PARTITIONS[version]
    holders = [TaskAssignment(names[each % 2], (names[1 - each % 2],)) for each in range(count)]
    for name in names:
        if name not in fleet.nodes:
            await fleet.node(name)
        node = fleet.nodes[name]
        node.version = "" if version == FIRST else version
        node.data = {each: {} for each in range(count)}
        for key in KEYS:
            node.data[partition_for(key.encode(), count)][key.encode()] = version.encode()
        core.tracker.on_member(member(name, {each: report() for each in range(count)}, port=node.port))
    for log in ("assignment", "members"):
        core.tracker.on_caught_up(log)
    core.inputs.on_read()
    core.tracker.on_assignment(assignment(holders, 7))
    assert await core.tables.wait_for_epoch(7, 10.0)
    await poll_until_async(
        lambda: all(len(each.callable) == 2 for each in core.tables.current().stores[STORE].partitions), 10, "routes"
    )


def versions_in(stamps: Iterable[types_pb2.ReplicaStamp]) -> set[str]:
    """Return the versions that an answer is of."""
    return {stamp.version or FIRST for stamp in stamps}


@dataclass
class Callers:
    """Callers of a router that read all the time: keys, batches and whole stores.

    `failed` and `mixed` are what should not be, `walks_ended` those that had to begin anew at a switch.
    """

    channel: grpc.aio.Channel
    failed: list[LookupFailure] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    walks_ended: int = 0
    _goes_on: bool = True

    def __post_init__(self) -> None:
        self._query = query_service_pb2_grpc.QueryServiceStub(self.channel)

    def stop(self) -> None:
        self._goes_on = False

    async def run(self) -> None:
        await asyncio.gather(self._gets(), self._gets(), self._batches(), self._batches(), self._walks())

    def _note(self, what: str, found: set[str]) -> None:
        if len(found) != 1:
            self.mixed.append(f"{what}: {sorted(found)}")
        for each in found:
            self.answers[each] = self.answers.get(each, 0) + 1

    async def _gets(self) -> None:
        for key in itertools.cycle(KEYS):
            if not self._goes_on:
                return
            try:
                answer = await self._query.Get(query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)))
            except grpc.aio.AioRpcError as error:
                self.failed.append(from_rpc_error(error))
                continue
            self._note("get", versions_in([answer.replica]))

    async def _batches(self) -> None:
        requests = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)) for key in KEYS]
        while self._goes_on:
            try:
                answer = await self._query.BatchGet(query_service_pb2.BatchGetRequest(requests=requests))
            except grpc.aio.AioRpcError as error:
                self.failed.append(from_rpc_error(error))
                continue
            for result in answer.results:
                if result.HasField("error"):
                    self.failed.append(LookupFailure.from_proto(result.error))
            self._note("batch", versions_in(each.response.replica for each in answer.results))

    async def _walks(self) -> None:
        while self._goes_on:
            token, found, keys = "", set[str](), list[str]()
            try:
                while True:
                    page = await self._query.Scan(
                        query_service_pb2.ScanRequest(store=STORE, page_size=7, page_token=token)
                    )
                    found |= versions_in(page.replicas)
                    keys += [entry.key.text for entry in page.entries]
                    if not (token := page.next_page_token):
                        break
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
                if failure.reason.name != "VERSION_CHANGED":
                    self.failed.append(failure)
                self.walks_ended += 1
                continue
            self._note("walk", found)
            if keys != sorted(KEYS):
                self.mixed.append(f"a walk has {len(keys)} keys")
