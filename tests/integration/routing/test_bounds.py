"""Freshness bounds that no replica keeps, or only some: each node is cut off from Kafka by a proxy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from statehouse.v1 import types_pb2
from tests.integration.routing.routed import ACTIVE, STANDBY, UNHEDGED, Links, RoutedFleet, Story, verdicts
from tests.support.fleet import STORE, Fleet
from tests.support.polling import poll_until

# A node that is cut off is no longer sure of being active after this.
SESSION_TIMEOUT_MS = 1_000


@pytest.fixture(scope="module")
def fleet(new_fleet: Callable[..., Fleet], links: Links) -> RoutedFleet:
    routed = RoutedFleet.start(new_fleet(partitions=1, session_timeout_ms=SESSION_TIMEOUT_MS), **UNHEDGED)
    for name in "ab":
        routed.node(name, bootstrap=links.bootstrap(name))
    routed.place("a", "b")
    return routed


@pytest.fixture
def routed(fleet: RoutedFleet, links: Links) -> Iterator[RoutedFleet]:
    yield fleet
    links.heal()
    fleet.wait_settled()
    poll_until(lambda: fleet.look_up().answer == ("a", ACTIVE), 30, "the active to be sure again")


def staleness_ms(routed: RoutedFleet, name: str) -> int:
    return routed.nodes[name].node().tasks[0].stores[0].staleness_ms


@pytest.mark.feature("bounds-read-active")
def test_a_bound_that_the_active_breaks_is_kept_by_a_standby(routed: RoutedFleet, links: Links) -> None:
    links.cut("a")
    poll_until(lambda: staleness_ms(routed, "a") > 1_500, 30, "the active to be stale")
    kept = ["a STALENESS_EXCEEDS_BOUND", "b answered"]
    # A machine that stalls may keep the standby from Kafka for a second, too.
    story = poll_until(
        lambda: (told := routed.look_up(max_staleness_ms=1_000)).asked == kept and told, 30, "the standby to be fresh"
    )
    assert story.answer == ("b", STANDBY)
    assert story.stamp.staleness_ms <= 1_000
    assert routed.look_up().stamp.host.instance_id == "a", "who sets no bound is answered, and told how stale it is"


@pytest.mark.feature("bounds-read-active")
def test_a_bound_that_all_break_fails_with_each_ones_reason(routed: RoutedFleet, links: Links) -> None:
    links.cut("a", "b")
    poll_until(lambda: min(staleness_ms(routed, name) for name in "ab") > 1_500, 30, "both to be stale")
    story = routed.look_up(max_staleness_ms=1_000)
    assert story.asked == ["a STALENESS_EXCEEDS_BOUND", "b STALENESS_EXCEEDS_BOUND"] * 2, "they may know better soon"
    assert story.failure == "NO_REPLICA_AVAILABLE"
    assert list(verdicts(story.error)) == ["a STALENESS_EXCEEDS_BOUND", "b STALENESS_EXCEEDS_BOUND"]
    story = routed.look_up()
    assert story.stamp.staleness_ms > 1_000


@pytest.mark.feature("node-out-touch")
def test_an_active_out_of_touch_answers_as_a_standby_and_not_those_who_demand_the_active(
    routed: RoutedFleet, links: Links
) -> None:
    links.cut("a")
    poll_until(lambda: routed.look_up().answer == ("a", STANDBY), 30, "the session timeout to pass")
    story = routed.look_up(active_only=True)
    assert story.asked == ["a ACTIVE_UNCONFIRMED"] * 2, "it may be in touch again a moment later"
    assert story.failure == "NO_REPLICA_AVAILABLE"
    assert list(verdicts(story.error)) == ["a ACTIVE_UNCONFIRMED", "b NOT_ACTIVE"]


def test_a_replica_that_lags_is_asked_last_by_those_who_bound_the_lag(routed: RoutedFleet, links: Links) -> None:
    links.cut("b")
    routed.fleet.put({routed.key(): "newer"})

    def told(max_lag: int) -> tuple[list[str], list[str]]:
        story = routed.look_up(max_lag=max_lag)
        return story.candidates, story.asked

    # All in one answer, as a machine that stalls may keep the active from Kafka for a second: its own lag is unknown
    # then.
    asked_last = ["a usable", "b LAG_EXCEEDS_BOUND"], ["a answered"]
    poll_until(lambda: told(max_lag=0) == asked_last, 30, "the router to know of the lag")
    poll_until(lambda: told(max_lag=10) == (["a usable", "b usable"], ["a answered"]), 30, "a bound that both keep")


def test_a_position_is_waited_for_within_the_deadline(routed: RoutedFleet) -> None:
    seen = routed.look_up().stamp.position
    beyond = types_pb2.Positions(positions=[types_pb2.StorePosition(store=STORE, partition=0, position=seen + 1)])

    def told_in_time() -> Story | None:
        """Return a lookup whose nodes had the time to say so, which a machine that stalls may take from them."""
        story = routed.look_up(at_least=beyond, timeout=1.0)
        assert story.failure == "POSITION_NOT_REACHED"
        return None if any("ATTEMPT_TIMED_OUT" in asked for asked in story.asked) else story

    story = poll_until(told_in_time, 30, "the nodes to answer in time")
    assert set(story.asked) <= {"a POSITION_NOT_REACHED", "b POSITION_NOT_REACHED"}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: routed.look_up(at_least=beyond))
        poll_until(lambda: not waiting.done(), 1, "the lookup to wait")
        routed.fleet.put({routed.key(): "newest"})
        story = waiting.result(30)
    assert story.stamp.position > seen
    assert story.told.response.value.text == "newest"
