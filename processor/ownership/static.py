"""Static topologies: serve changelogs written by another program, without Spark.

A TOML file names the stores. This process only creates the control topics and runs the ownership controller. Any
compacted topics can be changelogs, also those of a Kafka Streams application: our key layouts are the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from processor.ownership.acting import ControllerCallbacks
from processor.ownership.controller import OwnershipController
from processor.ownership.declarations import StoreDeclaration
from processor.ownership.declared_settings import ownership_settings
from processor.ownership.process import run_controller
from processor.ownership.topics.control_topics import control_topics, warn_of_uncompacted
from processor.settings import ProcessorSettings
from statehouse.contract.topology import changelog_topic, checked_name, updates_topic
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.access import check_login
from statehouse.kafka.topics import ensure_topics, partition_counts
from statehouse.runtime.file_reads import TEXT_BYTES_MAX, read

log = structlog.get_logger(__name__)

# The keys of a store in the file are the fields of StoreDeclaration. The topic gives the partition count, and the
# program that writes it says nothing in the commits topic.
_KEYS: Final = {
    {"is_global": "global"}.get(field.name, field.name): field
    for field in fields(StoreDeclaration)
    if field.name not in {"partition_count", "committed", "foreign"}
}


@dataclass(frozen=True, slots=True)
class StaticTopology:
    """An application id and its stores; their partition counts aren't known yet."""

    application_id: str
    stores: tuple[StoreDeclaration, ...]

    @classmethod
    def load(cls, path: Path) -> StaticTopology:
        """Read a file.

        Raises:
            ConfigurationError: the file can't be read, or its content can't work; the text names the store and the key.

        """
        try:
            content = tomllib.loads(read(path, TEXT_BYTES_MAX).decode())
        except (OSError, ValueError) as error:  # what is no TOML, or no UTF-8, is a ValueError
            raise ConfigurationError(f"static topology {path} can't be read: {error}") from error
        application_id = content.get("application_id")
        if not isinstance(application_id, str):
            raise ConfigurationError(f'{path}: application_id = "..." is missing')
        checked_name("application id", application_id)
        stores = content.get("stores")
        if not isinstance(stores, list) or not stores:
            raise ConfigurationError(f"{path}: it names no store: add a [[stores]] table with a name")
        return cls(application_id, tuple(_store(application_id, entry, path) for entry in stores))


def _store(application_id: str, entry: Mapping[str, Any], path: Path) -> StoreDeclaration:
    name = entry.get("name")
    if not isinstance(name, str):
        raise ConfigurationError(f"{path}: a [[stores]] table without a name")
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise ConfigurationError(f"{path}: store {name}: unknown {', '.join(unknown)}; there are {', '.join(_KEYS)}")
    for key, value in entry.items():
        if type(value).__name__ != _KEYS[key].type:
            raise ConfigurationError(f"{path}: store {name}: {key} must be a {_KEYS[key].type}, not {value!r}")
    given = {_KEYS[key].name: value for key, value in entry.items()}
    if given.get("is_global") and "changelog_topic" not in given:
        raise ConfigurationError(f"{path}: store {name}: name the topic of a global store (changelog_topic)")
    topic = updates_topic if given.get("ephemeral") else changelog_topic
    defaults: dict[str, Any] = {
        "query": name,
        "partition_count": 0,
        "changelog_topic": topic(application_id, name),
        "foreign": True,
    }
    try:
        return StoreDeclaration(**(defaults | given))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def run_static(path: Path, settings: ProcessorSettings) -> int:
    """Run the ownership controller of a static topology until SIGINT or SIGTERM; return the exit code (1: error)."""
    return run_controller(partial(_controller, path, settings), settings)


def _controller(path: Path, settings: ProcessorSettings, callbacks: ControllerCallbacks) -> OwnershipController:
    topology = StaticTopology.load(path)
    client_id = f"{topology.application_id}-static"
    check_login(settings.brokers, client_id)
    admin = clients.admin(settings.brokers, client_id)
    counts = partition_counts(admin, [store.changelog_topic for store in topology.stores])
    absent = sorted(topic for topic, count in counts.items() if count is None)
    if absent:
        raise ConfigurationError(f"topic {', '.join(absent)} not found: start what writes it first, or correct it")
    ensure_topics(admin, control_topics(topology.application_id, settings.replication_factor))
    warn_of_uncompacted(admin, topology.stores)
    declared = [replace(store, partition_count=counts[store.changelog_topic] or 0) for store in topology.stores]
    planned_by = ownership_settings(settings)
    made = OwnershipController(settings.brokers, topology.application_id, declared, planned_by, callbacks)
    log.info("serving a static topology", application_id=topology.application_id, stores=len(topology.stores))
    return made
