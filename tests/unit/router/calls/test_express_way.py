"""The proxy's snapshot follows table and health, and its sums count like lookups that came through the router."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.rpc import code_pb2, status_pb2

from router.calls.express_way import ExpressWay, why_handed, why_page_handed
from router.choice.answer_times import AnswerTimes
from router.choice.budget import RetryBudget
from router.choice.express import ExpressLimits
from statehouse.contract.topology import Role
from statehouse.control.v1.express_pb2 import ExpressSnapshot, ExpressSums
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.link.link import CallFailed, ToProxy
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]


class FakeLink:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[ToProxy, int, bytes]] = []
        self.on_sums: Callable[[bytes], None] = lambda _sums: None

    def send(self, kind: ToProxy, number: int = 0, content: bytes = b"") -> None:
        self.sent.append((kind, number, content))

    def snapshots(self) -> list[ExpressSnapshot]:
        return [ExpressSnapshot.FromString(content) for kind, _, content in self.sent if kind == ToProxy.ROUTES]


def express_way(fleet: Fleet, link: FakeLink, times: AnswerTimes, budget: RetryBudget) -> ExpressWay:
    router = fleet.router
    return ExpressWay(
        link,  # type: ignore[arg-type]
        router.tables,
        router.health,
        times,
        budget,
        router.metrics,
        bounds=ExpressLimits(7, 900, 0.25, needs_permits=False),
    )


def answer_times() -> AnswerTimes:
    return AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.25)


async def test_a_suspected_node_is_left_out_until_it_is_well(start: Start) -> None:
    fleet, link = await start("a", "b"), FakeLink()
    way = express_way(fleet, link, answer_times(), RetryBudget(10, 5))
    way.refresh()
    way.refresh()
    (first,) = link.snapshots()
    assert [(node.instance_id, node.address) for node in first.nodes] == [
        (name, fleet.router.tables.current().nodes[name].target) for name in ("a", "b")
    ]
    (store,) = first.stores
    assert (store.name, list(store.first), list(store.copies), store.late_after_us) == (STORE, [1], [1, 2], 50_000)
    assert (first.max_lookups, first.max_batch_entries, first.batch_late_after_us) == (7, 900, 250_000)
    node = fleet.router.tables.current().nodes["a"]
    fleet.router.health.failed(node, Reason.UNREACHABLE, "refused", float("inf"))
    way.refresh()
    (without,) = link.snapshots()[-1].stores
    assert [each.instance_id for each in link.snapshots()[-1].nodes] == ["b"]
    assert (list(without.first), list(without.copies)) == ([1], [1])
    fleet.router.health.answered(node)
    way.refresh()
    assert [snapshot.number for snapshot in link.snapshots()] == [1, 2, 3]
    assert link.snapshots()[-1].stores == first.stores


async def test_sums_are_metrics_times_and_income_of_the_budget(start: Start) -> None:
    fleet, link, times, budget = await start("a", "b"), FakeLink(), answer_times(), RetryBudget(10, 0)
    express_way(fleet, link, times, budget)
    sums = ExpressSums(shared=[3, 5])
    sums.sums.add(store=STORE, instance_id="a", role=Role.ACTIVE.value, count=300, took_us=[100_000] * 100)
    link.on_sums(sums.SerializeToString())
    value = fleet.router.metrics.registry.get_sample_value
    labels = {"store": STORE, "outcome": "OK", "role": "ACTIVE"}
    assert value("statehouse_router_lookups_total", labels) == 300
    assert value("statehouse_router_express_lookups_total", {"store": STORE, "role": "ACTIVE"}) == 300
    assert value("statehouse_router_lookup_duration_seconds_count", {"store": STORE}) == 300
    assert value("statehouse_router_coalesced_lookups_sum") == 8
    assert times.hedge_delay_s((STORE, "Get")) == pytest.approx(0.1)
    assert sum(budget.retry(0.0) for _ in range(40)) == 30
    link.on_sums(b"\xff")  # not to be read: it harms nobody


async def test_batches_in_sums_are_calls_and_lookups_without_a_role(start: Start) -> None:
    fleet, link, times, budget = await start("a", "b"), FakeLink(), answer_times(), RetryBudget(10, 0)
    express_way(fleet, link, times, budget)
    sums = ExpressSums()
    sums.batch_calls.add(instance_id="a", count=200, took_us=[100_000] * 100)
    sums.batch_lookups.add(store=STORE, count=5_000)
    sums.batch_lookups.add(store="gone", count=1)
    link.on_sums(sums.SerializeToString())
    value = fleet.router.metrics.registry.get_sample_value
    assert value("statehouse_router_lookups_total", {"store": STORE, "outcome": "OK", "role": ""}) == 5_000
    assert value("statehouse_router_express_lookups_total", {"store": STORE, "role": ""}) == 5_000
    assert value("statehouse_router_express_lookups_total", {"store": "", "role": ""}) == 1
    assert value("statehouse_router_attempts_total", {"reason": "OK"}) == 200
    assert value("statehouse_router_lookup_duration_seconds_count", {"store": STORE}) is None
    assert times.hedge_delay_s(("", "BatchGet")) == pytest.approx(0.1)
    assert sum(budget.retry(0.0) for _ in range(40)) == 20


async def test_pages_in_sums_are_pages_and_calls_that_may_take_any_time(start: Start) -> None:
    fleet, link, times, budget = await start("a", "b"), FakeLink(), answer_times(), RetryBudget(10, 0)
    express_way(fleet, link, times, budget)
    before = times.hedge_delay_s((STORE, "Get")), times.hedge_delay_s(("", "BatchGet"))
    sums = ExpressSums()
    sums.page_calls.add(instance_id="a", count=200, took_us=[900_000] * 100)
    sums.pages.add(store=STORE, count=150, took_us=[1_000_000] * 32)
    sums.pages.add(store="gone", count=1, took_us=[5])
    link.on_sums(sums.SerializeToString())
    value = fleet.router.metrics.registry.get_sample_value
    assert value("statehouse_router_lookups_total", {"store": STORE, "outcome": "OK", "role": ""}) == 150
    assert value("statehouse_router_express_lookups_total", {"store": STORE, "role": ""}) == 150
    assert value("statehouse_router_express_lookups_total", {"store": "", "role": ""}) == 1
    assert value("statehouse_router_lookup_duration_seconds_count", {"store": STORE}) == 150
    assert value("statehouse_router_lookup_duration_seconds_sum", {"store": STORE}) == pytest.approx(150)
    assert value("statehouse_router_attempts_total", {"reason": "OK"}) == 200
    assert (times.hedge_delay_s((STORE, "Get")), times.hedge_delay_s(("", "BatchGet"))) == before
    assert not fleet.router.health.suspects
    assert sum(budget.retry(0.0) for _ in range(40)) == 20


async def test_sums_of_what_was_before_a_suspicion_do_not_end_it(start: Start) -> None:
    fleet, link = await start("a", "b"), FakeLink()
    express_way(fleet, link, answer_times(), RetryBudget(10, 0))
    node = fleet.router.tables.current().nodes["a"]
    fleet.router.health.failed(node, Reason.UNREACHABLE, "refused", float("inf"))
    sums = ExpressSums()
    sums.sums.add(store=STORE, instance_id="a", role=Role.ACTIVE.value, count=1, took_us=[100])
    sums.batch_calls.add(instance_id="a", count=1, took_us=[100])
    sums.page_calls.add(instance_id="a", count=1, took_us=[100])
    link.on_sums(sums.SerializeToString())
    assert "a" in fleet.router.health.suspects


async def test_what_is_handed_over_has_a_reason() -> None:
    late = HandedLookup("a", "a:1", 0.0, asyncio.get_running_loop().create_future())

    def handed(came: bytes | LookupFailure | CallFailed | None) -> HandedLookup:
        future = asyncio.get_running_loop().create_future()
        if isinstance(came, CallFailed):
            future.set_exception(came)
        else:
            future.set_result(came)
        return HandedLookup("a", "a:1", 0.0, future)

    assert why_handed(late) == "LATE"
    assert why_handed(handed(LookupFailure(Reason.NOT_ACTIVE, "not here"))) == "NOT_ACTIVE"
    gone = CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="refused"))
    assert why_handed(handed(gone)) == "UNREACHABLE"
    assert why_handed(handed(b"an answer to some of a batch")) == "PARTLY"
    assert why_handed(handed(None)) == "UNKNOWN"
    assert why_page_handed((handed(b"a page"), late, handed(gone))) == "UNREACHABLE"
    assert why_page_handed((handed(b"a page"), late)) == "LATE"
    assert why_page_handed((handed(b"a page"), handed(b"another"))) == "UNKNOWN"
