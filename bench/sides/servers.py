"""The common part of both sides."""

from __future__ import annotations

import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc

from bench.failure import BenchFailure
from bench.records import record_count
from bench.shape import Shape, Side
from bench.waiting import wait_for
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import ManagedProcess

ROOT: Final = Path(__file__).parents[2]
T = TypeVar("T")

MAX_OFFSETS: Final = 350_000
"""Most offsets per batch of Spark.

In a batch of 100,000 half of the time is the fixed cost of a batch. But a store must take several batches to build, so
that nodes follow while Spark goes on.
"""
_SETTLE_S: Final = 1800.0
_STOP_S: Final = 60.0
_QUIET_S: Final = 1.0
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)

Options = Mapping[str, object]
"""Options of the load generator."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a partition on a node; `position` is an offset in the changelog."""

    node: str
    partition: int
    active: bool
    position: int
    caught_up: bool


@dataclass(frozen=True, slots=True)
class Spark:
    """The Spark application that writes what servers show.

    Attributes:
        checkpoints: the directory with the checkpoint of its query.
        written: returns a count that grows with each record it writes, whether the record shows yet or not.

    """

    process: ManagedProcess
    checkpoints: Path
    written: Callable[[], int]


def is_settled(copies: Collection[Copy], shape: Shape) -> bool:
    """Whether each partition has one active, and one standby if there is a second node, all caught up."""
    standbys = min(1, shape.nodes - 1)
    for partition in range(shape.partitions):
        held = [copy for copy in copies if copy.partition == partition]
        actives = sum(copy.active for copy in held)
        if actives != 1 or len(held) != 1 + standbys or not all(copy.caught_up for copy in held):
            return False
    return True


class Servers(ABC):
    """The processes of one side. They don't run at first; they keep their ports and state from start to start.

    New records are written to `source_topic`.
    """

    def __init__(self, side: Side, bootstrap: str, shape: Shape, directory: Path, source_topic: str) -> None:
        self.side, self.bootstrap, self.shape, self.directory = side, bootstrap, shape, directory
        self.source_topic = source_topic
        self.node_names = tuple(f"{side}-{number}" for number in range(1, shape.nodes + 1))
        self.ports = {name: free_port() for name in self.node_names}
        self.nodes: dict[str, ManagedProcess] = {}
        self._channels: dict[str, grpc.Channel] = {}
        self.credentials: grpc.ChannelCredentials | None = None
        """What we show to them; None: nothing is encrypted."""

    @property
    @abstractmethod
    def changelog(self) -> str:
        """The topic that copies follow."""

    @property
    @abstractmethod
    def straight(self) -> Options:
        """Options that send each lookup to the key's owner."""

    @abstractmethod
    def anywhere(self, names: Sequence[str] | None = None) -> Options:
        """Options that send lookups to servers that forward to owners; only to the named ones, if given."""

    @abstractmethod
    def copies(self) -> list[Copy]:
        """Return what each node that answers holds."""

    @abstractmethod
    def read(self, name: str | None, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys in a node's own copies; None for a key that is missing or that it can't answer for.

        Without a name, ask a server that forwards to owners.
        """

    @abstractmethod
    def is_processing(self) -> bool:
        """Whether the source's records are being processed: everything needed for that has started."""

    @abstractmethod
    def processes(self) -> Sequence[ManagedProcess]:
        """Return all processes, in the order to start them."""

    @property
    def spark(self) -> Spark:
        """Spark's application.

        Raises:
            BenchFailure: there is none.

        """
        raise BenchFailure(f"{self.side} runs without Spark")

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the processes that run, by name."""
        return {process.name: process.pid for process in self.processes() if process.pid is not None}

    def spawn(self, processes: Iterable[ManagedProcess] | None = None) -> None:
        """Start processes, by default all; return immediately."""
        for process in self.processes() if processes is None else processes:
            process.start()

    def start(self) -> None:
        """Start all and wait until every copy is at its end."""
        self.spawn()
        self.wait_settled()

    def stop(self, processes: Iterable[ManagedProcess] | None = None) -> None:
        """End processes, by default all, at the same time."""
        self._disconnect()
        running = [each for each in (self.processes() if processes is None else processes) if each.is_running]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            list(pool.map(ManagedProcess.stop, running))

    def kill(self) -> None:
        """End all by SIGKILL."""
        self._disconnect()
        for process in self.processes():
            process.kill()

    def restart(self, name: str) -> None:
        """Stop a node with SIGTERM and start it again once it has ended."""
        node = self.nodes[name]
        node.signal(signal.SIGTERM)
        wait_for(lambda: not node.is_running, _STOP_S, f"{name} to end")
        node.start()

    def wipe(self) -> None:
        """Delete the state that nodes have on disk."""
        for name in self.node_names:
            shutil.rmtree(self.state_dir(name), ignore_errors=True)

    def state_dir(self, name: str) -> Path:
        """Where a node keeps its state."""
        return self.directory / name

    def check(self) -> None:
        """Raise ProcessFailed if a process has ended."""
        for process in self.processes():
            process.check()

    def is_built(self) -> bool:
        """Whether each key of the data is in the changelog; markers of transactions count as keys."""
        return record_count(self.bootstrap, self.changelog, self.shape.partitions) >= self.shape.keys

    def wait_settled(self) -> None:
        """Wait until the changelog and the copies are complete, and have stayed so for a moment.

        Raises:
            BenchFailure: they were not complete in time.
            ProcessFailed: a process has ended.

        """
        wait_for(self._checked(self.is_built), _SETTLE_S, f"{self.side} to have its changelog complete")
        self.settled_copies(_QUIET_S)

    def settled_copies(self, for_s: float = 0.0) -> list[Copy]:
        """Return the copies once they have been complete and caught up for `for_s`; raise as `wait_settled` does.

        A node that doesn't answer in time, as on a busy machine, is asked again.
        """

        def settled() -> list[Copy]:
            copies = self.copies()
            return copies if is_settled(copies, self.shape) else []

        return wait_for(self._checked(settled), _SETTLE_S, f"{self.side} to have every copy at its end", for_s=for_s)

    def wait_serving(self) -> None:
        """Wait until all that has been written can be read, even if Spark has ended; raise as `wait_settled` does."""

        def is_serving() -> bool:
            for node in self.nodes.values():
                node.check()
            return is_settled(self.copies(), self.shape)

        wait_for(is_serving, _SETTLE_S, f"{self.side} to serve all that was written", for_s=_QUIET_S)

    def _checked(self, predicate: Callable[[], T]) -> Callable[[], T]:
        def checked() -> T:
            self.check()
            return predicate()

        return checked

    def target(self, name: str) -> str:
        """Return where a node listens."""
        return f"{LOOPBACK}:{self.ports[name]}"

    def channel(self, target: str) -> grpc.Channel:
        """Return a connection to one of the processes; it is kept for later calls."""
        if target not in self._channels:
            self._channels[target] = (
                grpc.insecure_channel(target, _CHANNEL)
                if self.credentials is None
                else grpc.secure_channel(target, self.credentials, _CHANNEL)
            )
        return self._channels[target]

    def _disconnect(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def owners(self) -> dict[str, object]:
        """Return the load generator's options that name each partition's active."""
        actives = {copy.partition: self.node_names.index(copy.node) for copy in self.settled_copies() if copy.active}
        return {
            "targets": [self.target(name) for name in self.node_names],
            "owners": [actives[partition] for partition in range(self.shape.partitions)],
        }
