"""Slow and overloaded nodes: hedges, the budget they are paid from, and refusals that are heeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.integration.routing.routed import ACTIVE, STANDBY, RoutedFleet, verdicts
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until

# A quiet router has 5 tokens a second over 10 seconds; hedges get half of them.
BURST: Final = 60
# Late answers in a row that make a node slow.
LATE_BEFORE_SLOW: Final = 5
# Late by any measure, and less than an attempt's time.
SLOWER_BY_S: Final = 2.0
# All of a burst is under way before the first hedge.
HEDGING: Final = {"hedge_min_ms": 500, "attempt_timeout_ms": 3_000, "retry_budget_percent": 0}


@pytest.fixture(scope="module")
def routed(new_fleet: Callable[..., Fleet]) -> RoutedFleet:
    """Nodes a and c let nobody wait for a position; b does."""
    routed = RoutedFleet.start(new_fleet(partitions=1), "b", **HEDGING)
    for name in "ac":
        routed.node(name, max_position_waits=0)
    return routed


@contextmanager
def frozen(routed: RoutedFleet, name: str) -> Iterator[None]:
    routed.nodes[name].freeze()
    try:
        yield
    finally:
        routed.nodes[name].thaw()


@pytest.mark.feature("hedged-lookups-within")
def test_a_late_answer_is_hedged_and_the_standby_wins(routed: RoutedFleet) -> None:
    routed.place("a", "b")
    assert routed.look_up().asked == ["a answered"]
    won_before = routed.metrics().value("statehouse_router_hedges_total", outcome="won")
    with frozen(routed, "a"):
        story = routed.look_up()
        assert story.asked == ["a overtaken", "beside it b answered"]
        assert story.answer == ("b", STANDBY)
        first, hedge = story.told.attempts
        assert (first.round, hedge.round) == (1, 1)
        assert hedge.sent_after_ms >= HEDGING["hedge_min_ms"]  # since the lookup came, as the first one's
        assert routed.metrics().value("statehouse_router_hedges_total", outcome="won") == won_before + 1
    poll_until(lambda: routed.look_up().answer == ("a", ACTIVE), 30, "the active to answer again")


def test_a_slow_node_is_asked_last_where_a_standby_may_answer(routed: RoutedFleet) -> None:
    advertised_port = free_port()
    slow = routed.node("slow", advertised_port=advertised_port)
    with FaultProxy(slow.port, port=advertised_port) as link:
        routed.place("slow", "b")
        assert routed.look_up().asked == ["slow answered"], "it is connected from now on"
        link.delay(SLOWER_BY_S, Direction.DOWNSTREAM)
        stories = routed.look_up_at_once(LATE_BEFORE_SLOW)
        assert [story.asked for story in stories] == [["slow overtaken", "beside it b answered"]] * LATE_BEFORE_SLOW
        story = routed.look_up(max_lag=1_000)
        assert story.asked == ["b answered"]
        assert story.candidates == ["b usable", "slow ATTEMPT_TIMED_OUT"]
        assert story.told.candidates[-1].detail.startswith("slow")
        assert routed.look_up(active_only=True).answer == ("slow", ACTIVE), "slow is not dead"
        link.heal()
        poll_until(lambda: routed.look_up().asked == ["slow answered"], 30, "the node to be asked in its turn again")
        routed.place("a", "b")


def test_what_the_budget_has_no_hedge_for_waits_and_is_answered_all_the_same(routed: RoutedFleet) -> None:
    routed.place("a", "b")
    with frozen(routed, "a"):
        stories = routed.look_up_at_once(BURST)
    assert all(story.answer == ("b", STANDBY) for story in stories)
    refused = [story for story in stories if story.told.retry_budget_refused == "hedge"]
    assert refused, "more were late than there were tokens for"
    for story in refused:
        assert story.asked == ["a ATTEMPT_TIMED_OUT", "b answered"]
    hedged = [story.asked for story in stories if story not in refused]
    assert ["a overtaken", "beside it b answered"] in hedged, "some were paid"
    assert routed.metrics().value("statehouse_router_hedges_total", outcome="refused") >= len(refused)


def test_who_says_that_it_is_overloaded_is_passed_over(routed: RoutedFleet) -> None:
    routed.place("a", "b")
    story = routed.look_up(at_least=beyond_the_end(routed), timeout=2.0)
    assert story.asked == ["a OVERLOADED", "b POSITION_NOT_REACHED"]
    assert story.failure == "POSITION_NOT_REACHED"


@pytest.mark.feature("overload-bounded-queues")
def test_when_all_are_overloaded_the_caller_is_told_so(routed: RoutedFleet) -> None:
    routed.place("a", "c")
    story = routed.look_up(at_least=beyond_the_end(routed))
    assert story.asked == ["a OVERLOADED", "c OVERLOADED"]
    assert story.failure == "OVERLOADED"
    assert list(verdicts(story.error)) == ["a OVERLOADED", "c OVERLOADED"]


def beyond_the_end(routed: RoutedFleet) -> types_pb2.Positions:
    position = routed.look_up().stamp.position + 1
    return types_pb2.Positions(positions=[types_pb2.StorePosition(store=STORE, partition=0, position=position)])


def test_a_router_with_as_many_lookups_as_it_admits_refuses_more_at_once(routed: RoutedFleet) -> None:
    epoch, metrics_port = routed.place("a", "b"), free_port()
    narrow = routed.fleet.router("narrow", max_lookups=1, metrics_port=metrics_port, **HEDGING)
    poll_until(lambda: is_ready(narrow, epoch), 30, "the second router to be ready")
    with frozen(routed, "a"), ThreadPoolExecutor(1) as threads:
        demanding = routed.request(active_only=True)
        waiting = threads.submit(lambda: ServerProcess.call(narrow.query.Get, demanding, 10.0))
        poll_until(lambda: has_open_lookup(metrics_port), 8, "the first lookup to take all the room")
        assert is_refused(narrow, routed.request())
        assert not waiting.done()
        routed.nodes["a"].thaw()
        assert waiting.result(30).replica.role == ACTIVE
    assert narrow.get(routed.key()).found


def is_ready(router: ServerProcess, epoch: int) -> bool:
    try:
        return ServerProcess.call(router.fleet.ListStores, fleet_service_pb2.ListStoresRequest()).epoch == epoch
    except LookupFailure:
        return False


def has_open_lookup(metrics_port: int) -> bool:
    return scrape(metrics_port).value("statehouse_router_open_lookups") == 1


def is_refused(router: ServerProcess, request: query_service_pb2.GetRequest) -> bool:
    try:
        ServerProcess.call(router.query.Get, request)
    except LookupFailure as failure:
        return failure.reason is Reason.OVERLOADED
    return False
