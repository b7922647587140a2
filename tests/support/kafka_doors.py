"""A broker with more addresses, each for clients that reach it another way: through a proxy, from a namespace.

Kafka tells a client which address to use next, and this depends on the listener that the client has used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statehouse.local import broker_config
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port

_LISTENERS = "listeners"
_ADVERTISED = "advertised.listeners"
_PROTOCOLS = "listener.security.protocol.map"


@dataclass(frozen=True, slots=True)
class Door:
    """A further address: where the broker listens, and what it calls itself to who comes by it (port 0: the same)."""

    host: str = LOOPBACK
    port: int = field(default_factory=free_port)
    advertised_port: int = 0

    @property
    def bootstrap(self) -> str:
        """Where clients begin, host:port."""
        return f"{self.host}:{self.advertised_port or self.port}"


class KafkaWithDoors(EmbeddedKafka):
    """The embedded broker, with doors by their names; they stay over restarts."""

    def __init__(self, data_dir: Path | None = None, *, doors: Mapping[str, Door]) -> None:
        super().__init__(data_dir)
        self.doors = dict(doors)

    def _write_configuration(self) -> None:
        super()._write_configuration()
        path = self.data_dir / broker_config.PROPERTIES_FILE
        lines = path.read_text(encoding="latin-1").splitlines()
        properties = dict(line.split("=", 1) for line in lines)
        for door_name, door in self.doors.items():
            name = door_name.upper()
            properties[_LISTENERS] += f",{name}://{door.host}:{door.port}"
            properties[_ADVERTISED] += f",{name}://{door.bootstrap}"
            properties[_PROTOCOLS] += f",{name}:PLAINTEXT"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="latin-1")
