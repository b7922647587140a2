"""Topics that anybody changes: a node refuses a store's lookups exactly as long as its topic isn't what it must be.

A real replica, admission and watch. The rule is written here a second time; each part of it is then taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from processor.ownership.topics.topic_watcher import TopicWatcher
from query_service.replicas.topic_watch import TopicWatch
from query_service.telemetry.metrics import NodeMetrics
from statehouse.errors import LookupFailure, Reason
from statehouse.kafka import topic_changes
from statehouse.kafka.topic_changes import COMPACT, DELETE, MISSING_S, FoundState, TopicState
from statehouse.v1 import types_pb2
from tests.unit.query_service.one_node import PARTITIONS, admission_of

POLICIES: Final = [frozenset({COMPACT}), frozenset({DELETE}), frozenset({COMPACT, DELETE})]
# What brokers say: the number of partitions, 0 if there is no such topic; its policy; whether that was asked for; how
# many seconds later.
LOOK = st.tuples(
    st.sampled_from([0, PARTITIONS, PARTITIONS, PARTITIONS + 1, PARTITIONS * 2]),
    st.sampled_from(POLICIES),
    st.booleans(),
    st.sampled_from([0.25, MISSING_S - 0.5, MISSING_S]),
)


def run(looks: Sequence[tuple[int, frozenset[str], bool, float]]) -> None:
    admission = admission_of(NodeMetrics(), range(PARTITIONS), ["a"])
    replicas = [store for task in admission._replicas.values() for store in task.stores.values()]
    told: list[bool] = []
    watch = TopicWatch(lambda: told.append(True))
    now, first, latest, gone_at, must_refuse = 0.0, None, None, None, False
    for partitions, policy, is_asked, later_s in looks:
        now += later_s
        found = {"t": FoundState("id", partitions, policy if is_asked else None)} if partitions else {}
        before, changes = must_refuse, len(told)
        watch.take(replicas, found, now)
        if partitions:
            gone_at = None
            latest = policy if is_asked else latest
            first = first or latest
            loses = first is not None and latest is not None and (DELETE in latest) and latest != first
            must_refuse = partitions != PARTITIONS or (loses and (first == {COMPACT} or latest == {DELETE}))
        else:
            gone_at = now if gone_at is None else gone_at
            must_refuse = before or now - gone_at >= MISSING_S
        for partition in range(PARTITIONS):
            refused: LookupFailure | None = None
            try:
                admission.admit(admission.store("s"), partition, types_pb2.Freshness(), types_pb2.Forwarding())
            except LookupFailure as failure:
                refused = failure
            assert (refused is not None) == must_refuse, (refused, now)
            assert refused is None or refused.reason is Reason.TOPIC_CHANGED
        assert before == must_refuse or len(told) > changes, "heartbeats must say it"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


@settings(max_examples=150, deadline=None)
@given(st.lists(LOOK, max_size=8))
def test_lookups_are_refused_exactly_as_long_as_the_topic_is_not_what_it_must_be(
    looks: list[tuple[int, frozenset[str], bool, float]],
) -> None:
    run(looks)


WHOLE: Final = (PARTITIONS, POLICIES[0], True, 0.25)
UNASKED: Final = (PARTITIONS, POLICIES[0], False, 0.25)


def _growth_is_no_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_changes, "counted", lambda _needed, _found: "")


def _policies_are_no_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_changes, "_policy_change", lambda _before, _now: "")


def _absence_is_no_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_changes, "MISSING_S", float("inf"))


def _a_policy_not_asked_for_is_whole(patch: pytest.MonkeyPatch) -> None:
    seen = TopicState.seen
    patch.setattr(
        TopicState,
        "seen",
        lambda self, found, now: seen(TopicState(self.partitions, self.policy, None, self.missing_since), found, now),
    )


@pytest.mark.parametrize(
    ("broken", "looks"),
    [
        (_growth_is_no_change, [WHOLE, (PARTITIONS + 1, POLICIES[0], True, 0.25)]),
        (_policies_are_no_change, [WHOLE, (PARTITIONS, POLICIES[1], True, 0.25)]),
        (_absence_is_no_change, [WHOLE, (0, POLICIES[0], True, 0.25), (0, POLICIES[0], True, MISSING_S)]),
        (_a_policy_not_asked_for_is_whole, [WHOLE, (PARTITIONS, POLICIES[2], True, 0.25), UNASKED]),
    ],
)
def test_each_part_of_the_rule_is_needed(
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    looks: Sequence[tuple[int, frozenset[str], bool, float]],
) -> None:
    run(looks)
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        run(looks)


def test_a_controller_tells_of_each_change_once_and_of_its_end() -> None:
    watcher = TopicWatcher("127.0.0.1:1", "test", dict)
    relied_on = {"members": 1, "source": None}
    whole, grown = FoundState("a", 1, POLICIES[0]), FoundState("a", 2)
    source, other = FoundState("b", 5, POLICIES[1]), FoundState("c", 6, POLICIES[1])
    with capture_logs() as logs:
        for now, members, source_now in [
            (0.0, whole, source),
            (5.0, grown, source),
            (10.0, grown, source),
            (15.0, whole, other),
            (20.0, whole, None),
            (25.0, whole, None),
        ]:
            found = {"members": members} | ({} if source_now is None else {"source": source_now})
            watcher.take(relied_on, found, now)
    assert [(each["log_level"], each["topic"], each.get("change", "")) for each in logs] == [
        ("warning", "members", "the topic has 2 partitions, and keys are placed by 1"),
        ("info", "members", ""),
        ("warning", "source", ""),
        ("warning", "source", "the topic doesn't exist any more"),
    ]
