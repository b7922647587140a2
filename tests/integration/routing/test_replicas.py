"""Which node answers for a partition with 0, 1 and 2 standbys: while all is well, when nodes die, and in a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from statehouse.v1 import errors_pb2
from tests.integration.routing.routed import ACTIVE, STANDBY, UNHEDGED, RoutedFleet, verdicts
from tests.support.fleet import Fleet
from tests.support.polling import poll_until
from tests.support.quotas import limit_reads


@pytest.fixture(scope="module")
def routed(new_fleet: Callable[..., Fleet]) -> RoutedFleet:
    return RoutedFleet.start(new_fleet(partitions=1), "a", "b", "c", **UNHEDGED)


@contextmanager
def killed(routed: RoutedFleet, *names: str) -> Iterator[None]:
    for name in names:
        routed.nodes[name].kill()
    yield
    for name in names:
        routed.nodes[name].start()


@pytest.mark.parametrize("standbys", ["", "b", "bc"], ids=["no standby", "one standby", "two standbys"])
def test_the_active_answers(routed: RoutedFleet, standbys: str) -> None:
    epoch = routed.place("a", *standbys)
    story = routed.look_up()
    assert story.asked == ["a answered"]
    assert story.answer == ("a", ACTIVE)
    assert (story.epoch, story.stamp.epoch) == (epoch, epoch)
    assert story.candidates[0] == "a usable"
    assert sorted(story.candidates[1:]) == [f"{name} usable" for name in standbys]


@pytest.mark.feature("dispatch-active-else")
def test_a_standby_answers_when_the_active_dies(routed: RoutedFleet) -> None:
    routed.place("a", "b")
    with killed(routed, "a"):
        story = routed.look_up()
        assert story.asked == ["a UNREACHABLE", "b answered"]
        assert story.answer == ("b", STANDBY)
        story = routed.look_up()
        assert story.asked == ["b answered"], "who was found dead is asked last"
        assert story.candidates == ["b usable", "a UNREACHABLE"]


def test_the_second_standby_answers_when_the_active_and_the_first_die(routed: RoutedFleet) -> None:
    routed.place("a", "b", "c")
    with killed(routed, "a", "b"):
        story = routed.look_up()
        assert story.asked[0] == "a UNREACHABLE"
        assert story.asked[-1] == "c answered"
        assert set(story.asked[1:-1]) <= {"b UNREACHABLE"}, "the freshest standby first"
        assert story.answer == ("c", STANDBY)


def test_without_a_standby_the_error_says_that_none_is_configured(routed: RoutedFleet) -> None:
    routed.place("a")
    with killed(routed, "a"):
        story = routed.look_up()
        assert story.failure == "NO_REPLICA_AVAILABLE"
        assert "no standby is configured" in story.error.message
        assert set(story.asked) == {"a UNREACHABLE"}
        assert list(verdicts(story.error)) == ["a UNREACHABLE"]


@pytest.mark.feature("failures-reason-list")
def test_when_all_replicas_are_dead_the_error_names_each(routed: RoutedFleet) -> None:
    routed.place("a", "b", "c")
    with killed(routed, "a", "b", "c"):
        story = routed.look_up()
        assert story.failure == "NO_REPLICA_AVAILABLE"
        assert "no standby is configured" not in story.error.message
        assert sorted(verdicts(story.error)) == ["a UNREACHABLE", "b UNREACHABLE", "c UNREACHABLE"]


def test_a_partition_that_nobody_holds_has_no_replica(routed: RoutedFleet) -> None:
    epoch = routed.assign(None)
    poll_until(lambda: routed.located().route.epoch == epoch, 30, "the router to know")
    story = routed.look_up()
    assert story.failure == "NO_REPLICA_AVAILABLE"
    assert "names no node for the partition" in story.error.message
    assert story.asked == []


def test_a_caller_who_demands_the_active_is_not_given_a_standby(routed: RoutedFleet) -> None:
    routed.place("a", "b")
    assert routed.look_up(active_only=True).answer == ("a", ACTIVE)
    with killed(routed, "a"):
        story = routed.look_up(active_only=True)
        assert story.failure == "NO_REPLICA_AVAILABLE"
        assert set(story.asked) == {"a UNREACHABLE"}
        assert list(verdicts(story.error)) == ["a UNREACHABLE", "b NOT_ACTIVE"]
        assert errors_pb2.ERROR_REASON_NOT_ACTIVE in {candidate.reason for candidate in story.told.candidates}


@pytest.mark.feature("found-said-only")
@pytest.mark.parametrize("engine", ["go", "python"])
def test_an_active_that_restores_leaves_lookups_to_the_standby(new_fleet: Callable[..., Fleet], engine: str) -> None:
    fleet = new_fleet(partitions=1)
    routed = RoutedFleet.start(fleet, "b", **UNHEDGED)
    fleet.put({f"filler-{number}": "x" for number in range(10_000)})  # a batch that never comes
    limit_reads(fleet.bootstrap, client_id := f"{fleet.application_id}-a-restore", bytes_per_s=500)
    routed.place("b")
    active = routed.node("a", engine=engine)
    routed.assign("a", "b")
    poll_until(lambda: [each.state for each in active.node().tasks] == ["restoring"], 30, "the restore to begin")
    known = ["b usable", "a PARTITION_RESTORING"]
    poll_until(lambda: routed.look_up().candidates == known, 30, "the router to know of the restore")
    story = routed.look_up()
    assert story.asked == ["b answered"]
    assert story.answer == ("b", STANDBY)
    story = routed.look_up(active_only=True)
    assert story.failure == "NO_REPLICA_AVAILABLE"
    assert list(verdicts(story.error)) == ["a PARTITION_RESTORING", "b NOT_ACTIVE"]
    assert set(story.asked) == {"a PARTITION_RESTORING"}
    assert active.node().tasks[0].state == "restoring", "all that was in the restore"
    limit_reads(fleet.bootstrap, client_id, bytes_per_s=1e9)
    routed.nodes["a"].kill()  # a client learns how long it is to wait, and doesn't ask before
    routed.nodes["a"].start()
    routed.wait_settled()
    assert routed.look_up().answer == ("a", ACTIVE)
