"""Routers and nodes that know different epochs: each is cut off from Kafka for a while, by a proxy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.routing.routed import ACTIVE, STANDBY, UNHEDGED, Links, RoutedFleet
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until

# Far longer than any cut: a node that was just cut off may still be what it was.
SESSION_TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def fleet(new_fleet: Callable[..., Fleet], links: Links) -> RoutedFleet:
    fleet = new_fleet(partitions=1, session_timeout_ms=SESSION_TIMEOUT_MS)
    routed = RoutedFleet.start(fleet, "a", "b", bootstrap=links.bootstrap("router"), **UNHEDGED)
    routed.node("c", bootstrap=links.bootstrap("c"))
    return routed


@pytest.fixture
def routed(fleet: RoutedFleet, links: Links) -> Iterator[RoutedFleet]:
    yield fleet
    links.heal()


@pytest.mark.feature("dispatch-active-else")
def test_a_router_behind_is_told_the_newer_owner_and_asks_it_at_once(routed: RoutedFleet, links: Links) -> None:
    before = routed.place("a")
    links.cut("router")
    after = routed.assign("b")
    routed.fleet.wait_running((routed.nodes["a"], routed.nodes["b"]))
    poll_until(lambda: is_sent_on(routed, "a"), 30, "a to have heard where b is")
    story = routed.look_up()
    assert story.epoch == before, "the router has not heard of it"
    assert story.asked == ["a PARTITION_NOT_OWNED", "b answered"]
    assert story.told.attempts[1].round == 1, "not after a pause: the answer of a said where to go"
    assert story.answer == ("b", ACTIVE)
    assert story.stamp.epoch == after
    links.heal()
    routed.wait_settled()
    assert routed.look_up().asked == ["b answered"]


def test_a_router_behind_is_sent_on_by_the_old_active_when_the_active_is_demanded(
    routed: RoutedFleet, links: Links
) -> None:
    routed.place("a", "b")
    links.cut("router")
    after = routed.assign("b", "a")
    routed.fleet.wait_running((routed.nodes["a"], routed.nodes["b"]))
    assert routed.look_up().answer == ("a", STANDBY), "it has the data, and says what it is now"
    story = routed.look_up(active_only=True)
    assert story.asked == ["a NOT_ACTIVE", "b answered"]
    assert story.answer == ("b", ACTIVE)
    assert story.stamp.epoch == after


@pytest.mark.feature("found-said-only")
def test_a_router_ahead_passes_over_a_node_that_does_not_know_what_it_holds(routed: RoutedFleet, links: Links) -> None:
    before = routed.place("a")
    links.cut("c")
    after = routed.assign("c", "a")
    routed.fleet.wait_running((routed.nodes["a"],))
    poll_until(lambda: routed.located().route.epoch == after, 30, "the router to know")
    assert routed.nodes["c"].node().epoch == before
    story = routed.look_up()
    assert story.asked == ["a answered"], "what c has not reported is asked last"
    assert story.candidates == ["a usable", "c PARTITION_RESTORING"]
    assert story.answer == ("a", STANDBY)
    story = routed.look_up(active_only=True)
    assert set(story.asked) == {"c PARTITION_NOT_OWNED"}
    links.heal()
    routed.wait_settled()
    assert routed.look_up().answer == ("c", ACTIVE)


@pytest.mark.feature("epochs-node-claims")
def test_an_active_behind_answers_as_a_standby_until_it_has_read_the_epoch(routed: RoutedFleet, links: Links) -> None:
    before = routed.place("c", "a")
    assert routed.look_up().answer == ("c", ACTIVE)
    links.cut("c")
    after = routed.assign("c", "b")
    poll_until(lambda: routed.located().route.epoch == after, 30, "the router to know")
    story = routed.look_up()
    assert story.asked == ["c answered"]
    assert (story.answer, story.stamp.epoch) == (("c", STANDBY), before), "another may be active at the newer epoch"
    story = routed.look_up(active_only=True)
    assert set(story.asked) == {"c NOT_ACTIVE"}
    assert story.told.attempts[-1].round > 2, "it is asked for a while: the epoch may be on its way"
    assert story.failure == "NO_REPLICA_AVAILABLE"
    links.heal()
    routed.wait_settled()
    story = routed.look_up(active_only=True)
    assert (story.answer, story.stamp.epoch) == (("c", ACTIVE), after)


@pytest.mark.feature("epochs-node-claims")
def test_a_node_never_claims_to_be_active_to_one_who_knows_a_newer_epoch(routed: RoutedFleet) -> None:
    epoch = routed.place("a", "b")
    assert routed.ask("a", forwarded(epoch)).replica.role == ACTIVE
    assert routed.ask("a", forwarded(epoch - 1)).replica.role == ACTIVE
    assert routed.ask("a", forwarded(epoch + 1)).replica.role == STANDBY
    with pytest.raises(LookupFailure, match="NOT_ACTIVE"):
        routed.ask("a", forwarded(epoch + 1), active_only=True)


@pytest.mark.feature("epochs-node-claims")
def test_a_request_passes_one_router_only(routed: RoutedFleet) -> None:
    epoch = routed.place("a", "b")
    with pytest.raises(LookupFailure, match="HOP_LIMIT"):
        ServerProcess.call(routed.router.query.Get, with_forwarding(routed.request(), forwarded(epoch)))
    with pytest.raises(LookupFailure, match="HOP_LIMIT"):
        routed.ask("a", types_pb2.Forwarding(epoch=epoch, hops=2))


@pytest.mark.feature("address-node-listens")
def test_a_node_that_advertises_the_routers_address_makes_no_loop(routed: RoutedFleet) -> None:
    routed.place("a")
    routed.node("lost", advertised_port=routed.router.port)
    routed.assign("lost", "a")
    routed.fleet.wait_running((routed.nodes["lost"], routed.nodes["a"]))
    poll_until(lambda: routed.look_up().candidates == ["lost usable", "a usable"], 30, "the router to know")
    story = routed.look_up()
    assert story.asked == ["lost HOP_LIMIT"]
    assert story.failure == "HOP_LIMIT"
    assert "advertised address is a router's" in story.error.message


def forwarded(epoch: int) -> types_pb2.Forwarding:
    return types_pb2.Forwarding(epoch=epoch, hops=1)


def with_forwarding(
    request: query_service_pb2.GetRequest, forwarding: types_pb2.Forwarding
) -> query_service_pb2.GetRequest:
    request.forwarding.CopyFrom(forwarding)
    return request


def is_sent_on(routed: RoutedFleet, name: str) -> bool:
    """Whether a node that is not asked in vain says at which address the active is."""
    with pytest.raises(LookupFailure) as caught:
        routed.ask(name, types_pb2.Forwarding())
    return caught.value.route is not None and caught.value.route.active.port > 0
