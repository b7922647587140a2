"""The embedded broker's configuration and command lines, as plain values; running them is kafka.py's job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from statehouse.local.ports import LOOPBACK

# Callers can't set these: with another value the broker would not be as EmbeddedKafka's attributes say.
OWNED_KEYS: Final = frozenset(
    {
        "process.roles",
        "node.id",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
    }
)

_SINGLE_BROKER_DEFAULTS: Final[Mapping[str, str]] = {
    # Internal topics on one broker can have one replica only.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # 50 partitions each is the default, and every one of them is created and loaded at first use.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Waiting for more members makes sense in a deployment, not for a group of one or two on one machine.
    "group.initial.rebalance.delay.ms": "0",
    # A topic that appears because someone mistyped its name hides the mistake.
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # After a crash the controller holds the node's old registration until its session ends, and the restarted broker
    # waits for that: 9 s by default, with a heartbeat every 2 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # A cleaner's buffer is taken from the heap, and the default (128 MB) is half of ours.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}

_JVM_FLAGS: Final = (
    # Start in two seconds rather than four, at the price of a slower peak that one machine's tests never reach.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)

# slf4j-simple writes to stderr, which kafka.py appends to the log file: so what the JVM itself prints lands there too,
# and a restart doesn't truncate what went before.
_LOGGING: Final[Mapping[str, str]] = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "org.slf4j.simpleLogger.log.kafka.server": "info",
    "org.slf4j.simpleLogger.log.org.apache.kafka.coordinator": "info",
    # Prints every configuration value, three times a start.
    "org.slf4j.simpleLogger.log.kafka.server.KafkaConfig": "warn",
    "org.slf4j.simpleLogger.showDateTime": "true",
    "org.slf4j.simpleLogger.dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSZ",
}

# Within the data directory, in which the processes run.
LOG_DIR: Final = "data"
PROPERTIES_FILE: Final = "server.properties"


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Raise ValueError for an override of a key in OWNED_KEYS."""
    refused = sorted(OWNED_KEYS & overrides.keys())
    if refused:
        raise ValueError(f"the embedded broker sets {', '.join(refused)} itself; leave it out of config")


def server_properties(port: int, controller_port: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the whole configuration of a node that is broker and controller; OWNED_KEYS are never overridden."""
    return {
        **_SINGLE_BROKER_DEFAULTS,
        **overrides,
        "process.roles": "broker,controller",
        "node.id": "1",
        # The voters' addresses are read at each start, so the controller may have another port next time.
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        # Relative to the process's directory: the value is a list, so an absolute path with a comma in it would be two.
        "log.dirs": LOG_DIR,
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return `properties` as a Java properties file."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def format_command(java: Path, class_path: str, cluster_id: str) -> list[str]:
    """Return the command that prepares an empty log directory; it does not change a prepared one."""
    return [
        *_program(java, class_path, 128, {"org.slf4j.simpleLogger.defaultLogLevel": "warn"}, "kafka.tools.StorageTool"),
        *("format", "--ignore-formatted", "--cluster-id", cluster_id, "--config", PROPERTIES_FILE),
    ]


def broker_command(java: Path, class_path: str, heap_mb: int) -> list[str]:
    """Return the command that runs the node until a signal stops it."""
    return [*_program(java, class_path, heap_mb, _LOGGING, "kafka.Kafka"), PROPERTIES_FILE]


def _program(java: Path, class_path: str, heap_mb: int, logging: Mapping[str, str], main: str) -> list[str]:
    flags = (f"-D{key}={value}" for key, value in logging.items())
    return [str(java), *_JVM_FLAGS, f"-Xmx{heap_mb}m", *flags, "-cp", class_path, main]


def _escaped(value: str) -> str:
    # A backslash begins an escape, and leading blanks are dropped, in the properties format.
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
