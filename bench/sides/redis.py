"""Redis, filled by Spark's `foreachBatch` (`bench.foreach_batch`): one instance, as Debian packages it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import redis

from bench.failure import BenchFailure
from bench.foreach_batch import CHECKPOINT
from bench.shape import Shape, Side
from bench.sides.servers import MAX_OFFSETS, ROOT, Copy, Options, Servers, Spark
from bench.waiting import wait_for
from statehouse.local.ports import LOOPBACK
from statehouse.local.process import ManagedProcess

_PROGRAM: Final = "redis-server"
_ANSWER_S: Final = 2.0
_READY_S: Final = 300.0
_FILL_S: Final = 1800.0
_STOP_S: Final = 60.0
_PERSISTENCE: Final = {
    # What its documentation advises to those who want to keep what they write: the log is synced once a second.
    Side.REDIS: ("appendonly yes", "appendfsync everysec", 'save ""'),
    # What the package's own configuration has.
    Side.REDIS_SNAPSHOTS: ("appendonly no", "save 3600 1 300 100 60 10000"),
}

REDISES: Final = frozenset(_PERSISTENCE)


def program() -> str:
    """Return where the server is.

    Raises:
        BenchFailure: it is not there.

    """
    found = shutil.which(_PROGRAM)
    if found is None:
        raise BenchFailure(f"{_PROGRAM} is not there: run `make tools`, or as root `apt-get install {_PROGRAM}`")
    return found


def configuration(side: Side, port: int, directory: Path) -> str:
    """Return what the configuration file has: no limit of memory, and what is kept on the disk."""
    lines = [f"bind {LOOPBACK}", f"port {port}", f"dir {directory}", "maxmemory 0", *_PERSISTENCE[side]]
    return "\n".join(lines) + "\n"


class Redis(Servers):
    """An instance that Spark fills once, to a topic's end: while it serves, no Spark runs."""

    def __init__(self, side: Side, bootstrap: str, shape: Shape, directory: Path, source_topic: str) -> None:
        super().__init__(side, bootstrap, replace(shape, nodes=1), directory, source_topic)
        (self._name,) = self.node_names
        self._port = self.ports[self._name]
        self._client = redis.Redis(
            host=LOOPBACK, port=self._port, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S
        )
        state, file = self.state_dir(self._name), directory / f"{side}.conf"
        state.mkdir(parents=True, exist_ok=True)
        file.write_text(configuration(side, self._port, state))
        log = directory / "logs" / f"{self._name}.log"
        self.nodes = {
            self._name: ManagedProcess(self._name, [program(), str(file)], log, cwd=state, stop_timeout_s=_STOP_S)
        }
        self._filling = self._feed("--once")

    @property
    def changelog(self) -> str:
        """See Servers."""
        return self.source_topic

    @property
    def straight(self) -> Options:
        """See Servers."""
        return {"kind": "redis", "targets": [self.target(self._name)]}

    def anywhere(self, names: Sequence[str] | None = None) -> Options:  # noqa: ARG002 - there is one
        """See Servers."""
        return self.straight

    def processes(self) -> Sequence[ManagedProcess]:
        """See Servers."""
        return tuple(self.nodes.values())

    def start(self) -> None:
        """See Servers; also have Spark fill it, if it is empty."""
        self.spawn()
        self.wait_serving()
        if not self.is_built():
            self._filling.start()
            wait_for(lambda: not self._filling.is_running, _FILL_S, f"Spark to have filled {self.side}")
            if self._filling.exit_code != 0:
                self._filling.check()
        self.wait_settled()

    def kill(self) -> None:
        """See Servers."""
        self._filling.kill()
        super().kill()

    def copies(self) -> list[Copy]:
        """See Servers; it has no partitions, and holds what is in any."""
        is_built = self.is_built()
        return [Copy(self._name, each, active=True, position=0, caught_up=is_built) for each in self._partitions]

    def read(self, name: str | None, keys: Sequence[str]) -> list[bytes | None]:  # noqa: ARG002 - there is one
        """See Servers."""
        if not keys:
            return []
        try:
            return [value if isinstance(value, bytes) else None for value in self._client.mget(keys)]
        except redis.RedisError:
            return [None] * len(keys)

    def is_built(self) -> bool:
        """See Servers."""
        try:
            return int(self._client.dbsize()) >= self.shape.keys
        except redis.RedisError:
            return False

    def is_processing(self) -> bool:
        """See Servers."""
        return self.is_built()

    def wait_serving(self) -> None:
        """See Servers; here: until it has loaded what its disk has."""
        wait_for(self._is_up, _READY_S, f"{self.side} to have loaded its data")

    @property
    def _partitions(self) -> range:
        return range(self.shape.partitions)

    def _is_up(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.RedisError:  # also while it loads
            return False

    @property
    def _checkpoints(self) -> Path:
        return self.directory / f"{self.side}-checkpoints"

    def _feed(self, *options: str) -> ManagedProcess:
        """Return the process of Spark."""
        command = [sys.executable, "-m", "bench.foreach_batch", "--source", self.source_topic]
        env = {name: value for name, value in os.environ.items() if not name.startswith("STATEHOUSE_")} | {
            "PYTHONPATH": str(ROOT),
            "STATEHOUSE_BOOTSTRAP": self.bootstrap,
            "STATEHOUSE_CHECKPOINT_DIR": str(self._checkpoints),
            "STATEHOUSE_MAX_OFFSETS": str(MAX_OFFSETS),
            "SPARK_LOCAL_DIRS": str(self.directory / "spark"),
        }
        return ManagedProcess(
            "spark",
            [*command, "--port", str(self._port), *options],
            self.directory / "logs" / "spark.log",
            env=env,
            cwd=ROOT,
            stop_timeout_s=_STOP_S,
        )


class FedRedis(Redis):
    """An instance that Spark goes on feeding."""

    def __init__(self, side: Side, bootstrap: str, shape: Shape, directory: Path, source_topic: str) -> None:
        super().__init__(side, bootstrap, shape, directory, source_topic)
        self._spark = self._feed()

    def processes(self) -> Sequence[ManagedProcess]:
        """See Servers."""
        return (*self.nodes.values(), self._spark)

    def start(self) -> None:
        """See Servers."""
        self.spawn()
        self.wait_settled()

    def is_processing(self) -> bool:
        """See Servers; here: Spark has planned its first batch."""
        return (self._checkpoints / CHECKPOINT / "offsets" / "0").exists()

    @property
    def spark(self) -> Spark:
        """See Servers."""
        return Spark(self._spark, self._checkpoints, self._written)

    def _written(self) -> int:
        return int(self._client.info("commandstats").get("cmdstat_set", {}).get("calls", 0))
