"""The networks that a scenario puts between the processes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self

from statehouse.local.ports import free_port
from tests.robustness.cluster import RobustCluster
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import ServerProcess
from tests.support.kafka_doors import Door
from tests.support.netns import Namespace, Network

StartNode = Callable[[RobustCluster, str], ServerProcess]


class Namespaces:
    """Every node in a network namespace of its own; a context manager."""

    def __init__(self) -> None:
        self._network = Network()
        self.of: dict[str, Namespace] = {}

    def __enter__(self) -> Self:
        self._network.__enter__()
        self.doors = {"namespaces": Door(self._network.host)}
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()

    def start_node(self, cluster: RobustCluster, name: str) -> ServerProcess:
        inside = self.of[name] = self._network.namespace()
        bootstrap = self.doors["namespaces"].bootstrap
        return cluster.node(
            name, prefix=inside.prefix, host=inside.address, bind_host=inside.address, bootstrap=bootstrap
        )


class Proxies:
    """A proxy before every node, for routers, and one behind it, to the broker; a context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self.doors = {f"kafka{name}": Door(advertised_port=free_port()) for name in names}
        self.to_node: dict[str, FaultProxy] = {}
        self.to_kafka: dict[str, FaultProxy] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def start_node(self, cluster: RobustCluster, name: str) -> ServerProcess:
        door, port = self.doors[f"kafka{name}"], free_port()
        self.to_kafka[name] = self._stack.enter_context(FaultProxy(door.port, port=door.advertised_port))
        node = cluster.node(name, bootstrap=door.bootstrap, advertised_port=port)
        self.to_node[name] = self._stack.enter_context(FaultProxy(node.port, port=port))
        return node
