"""The peer: a Kafka Streams application (its source is in `peers/kafka-streams/`, built by `make tools`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc

from bench.failure import BenchFailure
from bench.shape import Shape, Side
from bench.sides.servers import ROOT, Copy, Options, Servers
from statehouse.local.java import find_java
from statehouse.local.process import ManagedProcess

PROTO: Final = "bench/peers/kafka-streams/src/main/proto/peer.proto"
_BUILD: Final = ROOT / ".tools" / "kafka-streams-peer"
_STORE: Final = "latest"
_ANSWER_S: Final = 2.0


@cache
def messages() -> Any:  # noqa: ANN401 - a module that is made at the first call
    """Return the messages of the peer's contract."""
    return grpc.protos(PROTO)


def call(channel: Any, method: str, answer: str) -> Any:  # noqa: ANN401 - a channel of either kind, and its calls
    """Return one of the peer's calls; `answer` names the message type of its answer."""
    return channel.unary_unary(
        f"/bench.peer.PeerService/{method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=getattr(messages(), answer).FromString,
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """How a variant of the peer runs. Variants with the same caching are one application: only one of them may run."""

    executor: str = "default"
    caching: str = "on"


VARIANTS: Final = {
    Side.PEER: Variant(),
    Side.PEER_DIRECT: Variant(executor="direct"),
    Side.PEER_UNCACHED: Variant(caching="off"),
}


class KafkaStreams(Servers):
    """Instances that build a store from a topic, with a changelog, when their application first starts."""

    def __init__(self, side: Side, bootstrap: str, shape: Shape, directory: Path, source_topic: str) -> None:
        super().__init__(side, bootstrap, shape, directory, source_topic)
        self.application_id = f"{source_topic}-peer-caching-{VARIANTS[side].caching}"
        self.nodes = {name: self._instance(name, VARIANTS[side]) for name in self.node_names}

    @property
    def changelog(self) -> str:
        """See Servers."""
        return f"{self.application_id}-{_STORE}-changelog"

    @property
    def straight(self) -> Options:
        """See Servers."""
        return {"kind": "peer", **self.owners()}

    def anywhere(self, names: Sequence[str] | None = None) -> Options:
        """See Servers."""
        targets = [self.target(name) for name in names or self.node_names]
        return {"kind": "peer", "targets": targets, "partitions": self.shape.partitions}

    def processes(self) -> Sequence[ManagedProcess]:
        """See Servers."""
        return tuple(self.nodes.values())

    def state_dir(self, name: str) -> Path:
        """See Servers; the variants share it."""
        return self.directory / f"instance-{self.node_names.index(name) + 1}"

    def copies(self) -> list[Copy]:
        """See Servers."""
        return [
            Copy(name, copy.partition, copy.active, copy.position, status.state == "RUNNING" and copy.lag == 0)
            for name, status in self.statuses().items()
            for copy in status.partitions
        ]

    def statuses(self) -> dict[str, Any]:
        """Return the status of each instance that answers."""
        found = {name: self._status(name) for name in self.node_names}
        return {name: status for name, status in found.items() if status is not None}

    def is_processing(self) -> bool:
        """See Servers."""
        return any(status.state == "RUNNING" for status in self.statuses().values())

    def read(self, name: str | None, keys: Sequence[str]) -> list[bytes | None]:
        """See Servers."""
        batch_get = call(self.channel(self.target(name or self.node_names[0])), "BatchGet", "BatchGetResponse")
        try:
            batch = batch_get(messages().BatchGetRequest(keys=keys, local_only=name is not None), timeout=_ANSWER_S)
        except grpc.RpcError:
            return [None] * len(keys)
        return [answer.value if answer.found else None for answer in batch.answers]

    def _status(self, name: str) -> Any:  # noqa: ANN401 - as above
        status = call(self.channel(self.target(name)), "Status", "StatusResponse")
        try:
            return status(messages().StatusRequest(), timeout=_ANSWER_S)
        except grpc.RpcError:
            return None

    def _instance(self, name: str, variant: Variant) -> ManagedProcess:
        class_path = _BUILD / "class-path.txt"
        if not class_path.exists():
            raise BenchFailure(f"{class_path} is not there: run `make tools`")
        jar = _BUILD / "kafka-streams-peer.jar"
        command = [
            *(str(find_java()), *self.shape.java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *("-cp", f"{jar}:{class_path.read_text().strip()}", "bench.peer.Peer"),
        ]
        for option, value in {**self._options(name), "caching": variant.caching, "executor": variant.executor}.items():
            command += [f"--{option}", str(value)]
        return ManagedProcess(name, command, self.directory / "logs" / f"{name}.log", cwd=ROOT, stop_timeout_s=40.0)

    def _options(self, name: str) -> dict[str, object]:
        """Return the options that an instance of any variant has."""
        return {
            "bootstrap": self.bootstrap,
            "application-id": self.application_id,
            "instance-id": f"instance-{self.node_names.index(name) + 1}",
            "topic": self.source_topic,
            "state-dir": self.state_dir(name),
            "port": self.ports[name],
            "standbys": min(1, self.shape.nodes - 1),
            "commit-interval-ms": self.shape.commit_interval_ms,
            "session-timeout-ms": self.shape.session_timeout_ms,
        }
