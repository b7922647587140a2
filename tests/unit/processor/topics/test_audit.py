"""Topics, wanted and found."""

from __future__ import annotations

import pytest

from processor.topics.audit import Difference, compare
from statehouse.kafka.topics import FoundTopic, TopicSpec

COMPACT = {"cleanup.policy": "compact", "min.compaction.lag.ms": "600000"}


def differences(spec: TopicSpec, found: FoundTopic | None, *, is_control: bool = False) -> dict[str, Difference]:
    compared = compare([spec], {spec.name: found}, frozenset({spec.name}) if is_control else frozenset())
    assert all(each.topic == spec.name for each in compared)
    assert all(bool(each.remedy) == (each.difference is Difference.FIXED) for each in compared)
    return {each.setting: each.difference for each in compared}


def test_settings_that_nobody_names_are_not_compared() -> None:
    found = FoundTopic(3, 2, {**COMPACT, "segment.ms": "1"})
    assert set(differences(TopicSpec("t", 3, COMPACT), found).values()) == {Difference.NONE}


@pytest.mark.feature("settings-topics-wanted")
def test_what_brokers_can_change_is_told_from_what_nobody_can() -> None:
    found = FoundTopic(2, 1, {"cleanup.policy": "delete"})
    assert differences(TopicSpec("t", 3, COMPACT, 3), found) == {
        "partitions": Difference.FIXED,
        "replicas": Difference.FIXED,
        "cleanup.policy": Difference.CHANGEABLE,
        "min.compaction.lag.ms": Difference.CHANGEABLE,
    }
    assert "replicas" not in differences(TopicSpec("t", 3, COMPACT), found), "the brokers' default counts"


def test_a_topic_that_is_not_there_is_missing() -> None:
    assert set(differences(TopicSpec("t", 3, COMPACT, 3), None).values()) == {Difference.MISSING}


@pytest.mark.feature("settings-topics-wanted")
def test_the_remedy_for_partitions_depends_on_whose_topic_it_is() -> None:
    spec, found = TopicSpec("t", 1), FoundTopic(4, 1, {})
    (store,) = compare([spec], {"t": found}, frozenset())
    (control,) = compare([spec], {"t": found}, frozenset({"t"}))
    assert "set partitions=4 in the code, or reset the application" in store.remedy
    assert "stop all processes, delete the topic" in control.remedy
