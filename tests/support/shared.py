"""Processes that the tests of a file share, because most tests take less time than a start; each has its own store."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.v1 import node_service_pb2, query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until
from tests.support.watches import Watcher

NO_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({})


@contextmanager
def shared_fleet(bootstrap: str, directories: pytest.TempPathFactory, name: str, **options: Any) -> Iterator[Fleet]:
    """Make a fleet for more than one test; `name` tells in the broker's log whose it is."""
    with Fleet(bootstrap, f"{name}-{uuid.uuid4().hex[:8]}", directories.mktemp(name), **options) as fleet:
        yield fleet


class NodesByOptions(ExitStack):
    """One-partition fleets of one node each, started when they are first asked for."""

    def __init__(self, bootstrap: str, directories: pytest.TempPathFactory, name: str) -> None:
        super().__init__()
        self._bootstrap, self._directories, self._name = bootstrap, directories, name
        self._nodes: dict[frozenset[tuple[str, object]], tuple[Fleet, ServerProcess]] = {}

    def of(self, options: Mapping[str, Any]) -> tuple[Fleet, ServerProcess]:
        """Return the node with these command line options, underscores in their names, and its fleet."""
        key = frozenset(options.items())
        if key not in self._nodes:
            fleet = self.enter_context(shared_fleet(self._bootstrap, self._directories, self._name, partitions=1))
            self._nodes[key] = (fleet, fleet.node("n1", **options))
        return self._nodes[key]


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store of a fleet, as tests write to it and ask one node for it."""

    fleet: Fleet
    node: ServerProcess
    name: str = STORE

    @property
    def bootstrap(self) -> str:
        return self.fleet.bootstrap

    @property
    def changelog(self) -> str:
        return self.fleet.stores[self.name].changelog_topic

    def put(self, entries: Mapping[str, str | None]) -> None:
        self.fleet.put(entries, self.name)

    def put_records(self, records: Iterable[tuple[str, bytes, bytes | None, int]]) -> None:
        self.fleet.put_records(records, self.name)

    def get(self, key: str, **freshness: Any) -> query_service_pb2.GetResponse:
        return self.node.get(key, store=self.name, **freshness)

    def replica(self, partition: int = 0) -> node_service_pb2.StoreReplica:
        """Return what the node says of a partition; nothing, while it is opened."""
        tasks = (task for task in self.node.node().tasks if task.task == f"0_{partition}")
        stores = (store for task in tasks for store in task.stores if store.store == self.name)
        return next(stores, node_service_pb2.StoreReplica())

    def watch(self, key: str | None = None, **fields: Any) -> Watcher:
        return Watcher(self.node, key, store=self.name, **fields)


def publish_store(
    fleet: Fleet, node: ServerProcess, name: str, changelog_config: Mapping[str, str] | None = None, **spec: Any
) -> ServedStore:
    """Put a store in the place of the one before, at a node that holds all tasks from then on."""
    fleet.stores = MappingProxyType({STORE: fleet.spec})
    fleet.add_store(name, changelog_config, **spec)
    fleet.assign(*[TaskAssignment(node.name)] * fleet.partitions)
    return ServedStore(fleet, node, name)


def new_store(
    fleet: Fleet, node: ServerProcess, name: str, changelog_config: Mapping[str, str] | None = None, **spec: Any
) -> ServedStore:
    """Like `publish_store`; return when the node serves it."""
    store = publish_store(fleet, node, name, changelog_config, **spec)

    def is_served() -> bool:
        reply = node.node()
        serving = [task for task in reply.tasks if task.state == TaskState.RUNNING]
        return (
            reply.epoch == fleet.assignment.epoch
            and len(serving) == fleet.partitions
            and all(name in {store.store for store in task.stores} for task in serving)
        )

    poll_until(is_served, 30, f"{node.name} to serve {name}")
    return store
