"""Redis: one instance of Debian's package, asked by `MGET`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.shape import Side
from bench.sides.redis import configuration, program
from bench.truth import ACCOUNTS, COUNTERS
from bench.truth.checks import Shown
from bench.truth.systems.fed import Fed
from bench.truth.systems.system import NoAnswer, Pair, Way
from statehouse.local.ports import LOOPBACK
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

ATTEMPT_S: Final = 1.0
NAMES: Final = {Side.REDIS: "Redis", Side.REDIS_SNAPSHOTS: "Redis as packaged"}


class Redis(Fed):
    """See the module."""

    def __init__(self, side: Side, bootstrap: str, link: FaultProxy, port: int, directory: Path) -> None:
        state, file = directory / "redis", directory / "redis.conf"
        state.mkdir(parents=True)
        file.write_text(configuration(side, port, state))
        server = ManagedProcess(
            "redis", [program(), str(file)], directory / "logs" / "redis.log", cwd=state, stop_timeout_s=30.0
        )
        super().__init__("redis", bootstrap, link, directory, server)
        self._client = redis.Redis(
            host=LOOPBACK,
            port=port,
            socket_timeout=ATTEMPT_S,
            socket_connect_timeout=ATTEMPT_S,
            retry=Retry(NoBackoff(), 0),  # who asks tries again
        )
        self.ways = {NAMES[side]: Way(self._read, None)}

    def is_up(self) -> bool:
        """See Fed."""
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def _read(self, pair: Pair, timeout_s: float) -> Shown:  # noqa: ARG002 - the client has one for all calls
        keys = [f"{store}:{account}" for store in (ACCOUNTS, COUNTERS) for account in pair]
        try:
            values = [None if each is None else int(each) for each in self._client.mget(keys)]
        except redis.RedisError as failure:
            raise NoAnswer(str(failure)) from failure
        return Shown((values[0], values[1]), (values[2], values[3]))
