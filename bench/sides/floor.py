"""Servers that do only what grpcio does (`bench.empty_handler`), as many as there are nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from bench.shape import Shape, Side
from bench.sides.ours import STORE
from bench.sides.servers import ROOT, Copy, Options, Servers
from statehouse.local.process import ManagedProcess

_KEYS: Final = 10_000  # their answers are made beforehand; more keys would cost the same for each lookup
_READY_S: Final = 60.0


class EmptyHandlers(Servers):
    """Has no topic and no copies: each server answers for every key."""

    def __init__(self, bootstrap: str, shape: Shape, directory: Path, source_topic: str) -> None:
        super().__init__(Side.FLOOR, bootstrap, shape, directory, source_topic)
        self.nodes = {name: self._process(name) for name in self.node_names}

    @property
    def changelog(self) -> str:
        """See Servers."""
        return self.source_topic

    @property
    def straight(self) -> Options:
        """See Servers."""
        owners = [partition % self.shape.nodes for partition in range(self.shape.partitions)]
        targets = [self.target(name) for name in self.node_names]
        return {"kind": "ours", "store": STORE, "keys": _KEYS, "targets": targets, "owners": owners}

    def anywhere(self, names: Sequence[str] | None = None) -> Options:  # noqa: ARG002 - all are alike
        """See Servers."""
        return self.straight

    def processes(self) -> Sequence[ManagedProcess]:
        """See Servers."""
        return tuple(self.nodes.values())

    def copies(self) -> list[Copy]:
        """See Servers."""
        return []

    def read(self, name: str | None, keys: Sequence[str]) -> list[bytes | None]:  # noqa: ARG002 - it holds nothing
        """See Servers."""
        return [None] * len(keys)

    def is_processing(self) -> bool:
        """See Servers."""
        return True

    def wait_settled(self) -> None:
        """See Servers; here: until each takes connections."""
        for name in self.node_names:
            grpc.channel_ready_future(self.channel(self.target(name))).result(_READY_S)
        self.check()

    def _process(self, name: str) -> ManagedProcess:
        options = ["--port", str(self.ports[name]), "--keys", str(_KEYS), "--store", STORE]
        command = [sys.executable, "-m", "bench.empty_handler", *options]
        return ManagedProcess(name, command, self.directory / "logs" / f"{name}.log", cwd=ROOT)
