"""The ports of a local cluster's parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from statehouse.local.errors import LocalError
from statehouse.local.ports import free_port

ROUTER_METRICS: Final = "router's metrics"
"""The name of that port."""


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of a cluster's parts; nodes take `first_node` and those that follow. 0 is any free one."""

    kafka: int = 9092
    router: int = 7100
    http: int = 7000
    first_node: int = 7101

    @classmethod
    def free(cls) -> ClusterPorts:
        """Return any free ports."""
        return cls(0, 0, 0, 0)

    def resolved(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return the port of each part by its name.

        Raises:
            LocalError: two parts would have the same port.

        """
        ports = {"kafka": self.kafka, "router": self.router, "http": self.http}
        ports |= {name: self.first_node + index if self.first_node else 0 for index, name in enumerate(nodes)}
        ports[ROUTER_METRICS] = 0  # only the page asks there
        taken = {port for port in ports.values() if port}
        if len(taken) < sum(1 for port in ports.values() if port):
            raise LocalError(f"two parts can't have one port: {ports}. Choose others by the flags.")
        for name in [name for name, port in ports.items() if port == 0]:
            while ports[name] == 0 or ports[name] in taken:
                ports[name] = free_port()
            taken.add(ports[name])
        return ports
