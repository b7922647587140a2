"""Compares the topics that an application wants with those that the brokers have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from statehouse.kafka.topics import FoundTopic, TopicSpec

PARTITIONS: Final = "partitions"
REPLICAS: Final = "replicas"


class Difference(StrEnum):
    """How what is found differs from what is wanted."""

    NONE = "none"
    MISSING = "missing"
    """The topic doesn't exist. It can be created."""
    CHANGEABLE = "changeable"
    """Brokers change the setting when they are told to."""
    FIXED = "fixed"
    """Nobody can change it without more."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic, wanted and found.

    Attributes:
        setting: Kafka's name for it, or "partitions" or "replicas".
        found: None if the topic doesn't exist.
        remedy: what to do about a difference that can't be changed; "" otherwise.

    """

    topic: str
    setting: str
    wanted: str
    found: str | None
    difference: Difference
    remedy: str = ""


def compare(
    specs: Sequence[TopicSpec], found: Mapping[str, FoundTopic | None], control: frozenset[str]
) -> list[TopicSetting]:
    """Return all settings that specs name, and the numbers of partitions and, where one is asked for, of replicas.

    Settings that no spec names belong to the brokers' operators. `control`: names of the control topics.
    """
    return [setting for spec in specs for setting in _of_topic(spec, found[spec.name], spec.name in control)]


def _of_topic(spec: TopicSpec, found: FoundTopic | None, is_control: bool) -> Iterator[TopicSetting]:
    partitions = None if found is None else found.partitions
    yield _fixed(spec, PARTITIONS, spec.partitions, partitions, _partitions_remedy(spec, partitions, is_control))
    if spec.replication_factor > 0:
        remedy = "kafka-reassign-partitions gives the topic other replicas; or set replication_factor to what it has"
        yield _fixed(spec, REPLICAS, spec.replication_factor, None if found is None else found.replicas, remedy)
    for name, wanted in spec.config.items():
        value = None if found is None else found.settings.get(name, "")
        difference = Difference.MISSING if value is None else Difference.CHANGEABLE
        yield TopicSetting(spec.name, name, wanted, value, Difference.NONE if value == wanted else difference)


def _fixed(spec: TopicSpec, name: str, wanted: int, found: int | None, remedy: str) -> TopicSetting:
    if found is None:
        return TopicSetting(spec.name, name, str(wanted), None, Difference.MISSING)
    if found == wanted:
        return TopicSetting(spec.name, name, str(wanted), str(found), Difference.NONE)
    return TopicSetting(spec.name, name, str(wanted), str(found), Difference.FIXED, remedy)


def _partitions_remedy(spec: TopicSpec, found: int | None, is_control: bool) -> str:
    if is_control:
        return (
            "a control topic has one partition: stop all processes, delete the topic, and start the processor, which "
            "makes it anew"
        )
    return (
        f"a partition count is fixed for a store's life: set partitions={found} in the code, or reset the application "
        f"(statehouse reset), which then has {spec.partitions}"
    )
