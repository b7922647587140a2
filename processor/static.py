"""Static topologies: serve changelogs that somebody else writes, without Spark.

A TOML file names the stores; this process creates the control topics and runs the ownership controller, and that is
all. The changelogs may be any compacted topics, those of a Kafka Streams application among them: its layouts are ours.
"""

from __future__ import annotations

import signal
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from confluent_kafka import KafkaException

from processor.ownership.controller import OwnershipController
from processor.ownership.settings import OwnershipSettings, StoreDeclaration
from processor.topics import create_control_topics
from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.topics import partition_counts
from statehouse.serdes import serde
from statehouse.topology import KEY_VALUE, STORE_KINDS, WINDOW, changelog_topic, checked_name

log = structlog.get_logger(__name__)

_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class StaticStore:
    """A store as the file names it; the partition count is the topic's."""

    name: str
    changelog_topic: str
    query: str
    kind: str = KEY_VALUE
    key_serde: str = "string"
    value_serde: str = "json"
    in_memory: bool = False
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class StaticTopology:
    """An application id and its stores."""

    application_id: str
    stores: tuple[StaticStore, ...]

    @classmethod
    def load(cls, path: Path) -> StaticTopology:
        """Read a file.

        Raises:
            ConfigurationError: it can't be read, or what it says can't work; names the store and the key.

        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"static topology {path} can't be read: {error}") from error
        application_id = content.get("application_id")
        if not isinstance(application_id, str):
            raise ConfigurationError(f'{path}: application_id = "..." is missing')
        checked_name("application id", application_id)
        stores = content.get("stores")
        if not isinstance(stores, list) or not stores:
            raise ConfigurationError(f"{path}: it names no store: add a [[stores]] table with a name")
        return cls(application_id, tuple(_store(application_id, entry, path) for entry in stores))


def _store(application_id: str, entry: Mapping[str, Any], path: Path) -> StaticStore:
    name = entry.get("name")
    if not isinstance(name, str):
        raise ConfigurationError(f"{path}: a [[stores]] table without a name")
    known = {field.name: field.type for field in fields(StaticStore)}
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise ConfigurationError(f"{path}: store {name}: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    for key, value in entry.items():
        if type(value).__name__ != known[key]:
            raise ConfigurationError(f"{path}: store {name}: {key} must be a {known[key]}, not {value!r}")
    store = StaticStore(**{"changelog_topic": changelog_topic(application_id, name), "query": name, **entry})
    if store.kind not in STORE_KINDS:
        raise ConfigurationError(f"{path}: store {name}: kind must be one of {', '.join(STORE_KINDS)}")
    if store.kind != KEY_VALUE and store.retention_ms <= 0:
        raise ConfigurationError(f"{path}: store {name}: a {store.kind} store needs retention_ms")
    if store.kind == WINDOW and not 0 < store.window_size_ms <= store.retention_ms:
        raise ConfigurationError(f"{path}: store {name}: window_size_ms must be above 0 and at most retention_ms")
    serde(store.key_serde)
    serde(store.value_serde)
    return store


def run_static(path: Path, bootstrap: str, settings: OwnershipSettings, *, replication_factor: int = -1) -> int:
    """Run the ownership of a static topology until SIGINT or SIGTERM; return the exit code, 1 after saying why."""
    # A handler may run in the middle of anything: no lock in it.
    asked: list[int] = []
    failures: list[Exception] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    try:
        topology = StaticTopology.load(path)
        controller = _controller(topology, bootstrap, settings, replication_factor, failures.append)
    except (StatehouseError, KafkaException) as error:
        log.error("static topology can't be served", reason=str(error))  # noqa: TRY400 - the text is the message
        return 1
    controller.start()
    log.info("serving a static topology", application_id=topology.application_id, stores=len(topology.stores))
    while not asked and not failures:
        time.sleep(_WAIT_S)
    controller.stop()
    for failure in failures:
        log.error("ownership ended", reason=str(failure))
    return 1 if failures else 0


def _controller(
    topology: StaticTopology,
    bootstrap: str,
    settings: OwnershipSettings,
    replication_factor: int,
    on_fatal: Any,  # noqa: ANN401 - the controller's own callback type
) -> OwnershipController:
    admin = clients.admin(bootstrap, f"{topology.application_id}-static")
    counts = partition_counts(admin, [store.changelog_topic for store in topology.stores])
    absent = sorted(topic for topic, count in counts.items() if count is None)
    if absent:
        raise ConfigurationError(f"changelog {', '.join(absent)} not found: start what writes it first, or correct it")
    create_control_topics(admin, topology.application_id, replication_factor)
    declared = [
        StoreDeclaration(
            name=store.name,
            query=store.query,
            partition_count=counts[store.changelog_topic] or 0,
            changelog_topic=store.changelog_topic,
            kind=store.kind,
            key_serde=store.key_serde,
            value_serde=store.value_serde,
            in_memory=store.in_memory,
            retention_ms=store.retention_ms,
            window_size_ms=store.window_size_ms,
            retain_duplicates=store.retain_duplicates,
        )
        for store in topology.stores
    ]
    return OwnershipController(bootstrap, topology.application_id, declared, settings, on_fatal=on_fatal)
