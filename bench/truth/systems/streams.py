"""Kafka Streams: two instances with standbys, exactly once, interactive queries over gRPC from any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc

from bench.shape import Side
from bench.sides.peer import KafkaStreams, call, messages
from bench.truth import ACCOUNTS, COUNTERS, SOURCE
from bench.truth.checks import Shown
from bench.truth.systems.ours import SHAPE
from bench.truth.systems.system import NoAnswer, Pair, System, Way
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

_ATTEMPT_S: Final = 1.0
_COMMITS_MS: Final = 100
"""Kafka Streams' default where it processes exactly once."""


class _Instances(KafkaStreams):
    def _options(self, name: str) -> dict[str, object]:
        return {**super()._options(name), "topology": "bank"}


class Streams(System):
    """See the module."""

    def __init__(self, link: FaultProxy, directory: Path) -> None:
        self.link = link
        shape = replace(SHAPE, commit_interval_ms=_COMMITS_MS)
        self._instances = _Instances(Side.PEER, link.address, shape, directory, SOURCE)
        self._asked = 0
        self.ways = {"Kafka Streams": Way(self._read, None)}

    @property
    def serving(self) -> Sequence[ManagedProcess]:
        """See System."""
        return tuple(self._instances.nodes.values())

    @property
    def writer(self) -> None:
        """See System."""
        return

    def start(self) -> None:
        """See System."""
        self._instances.spawn()

    def stop(self) -> None:
        """See System."""
        self._instances.stop()

    def _read(self, pair: Pair, timeout_s: float) -> Shown:
        names = self._instances.node_names
        channel = self._instances.channel(self._instances.target(names[self._asked % len(names)]))
        keys = [f"{store}/{account}" for store in (ACCOUNTS, COUNTERS) for account in pair]
        batch_get = call(channel, "BatchGet", "BatchGetResponse")
        try:
            batch = batch_get(messages().BatchGetRequest(keys=keys), timeout=min(_ATTEMPT_S, timeout_s))
        except grpc.RpcError as failure:
            self._asked += 1  # the next attempt goes to the next instance
            raise NoAnswer(str(failure)) from failure
        values = [int(each.value) if each.found else None for each in batch.answers]
        return Shown((values[0], values[1]), (values[2], values[3]))
