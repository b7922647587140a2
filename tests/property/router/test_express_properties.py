"""The calls to nodes that the router leaves to the proxy are those that a lookup of the router would make first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.choice.candidates import Eligibility, Suspicion, ask_order, judge
from router.choice.express import Decided, ExpressCompiler, ExpressLimits, Obstacle, decided
from router.choice.express_pages import decided_page
from router.fleet.table import RoutedReplica, RoutingTable
from router.lookups.locate import keyed_call
from statehouse.contract.consistency import ANY
from statehouse.contract.moments import Asked
from statehouse.contract.paging import bound_of_page
from statehouse.control.v1.express_pb2 import ExpressSnapshot
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.express_cases import made_page_request, made_request, made_table, with_token

PORTS = {"a": 1, "b": 2, "c": 3}
REQUESTS = 50
LIMITS = ExpressLimits(9, 1_000, 0.25, needs_permits=False)


def made_snapshot(rng: random.Random) -> tuple[RoutingTable, Mapping[str, Suspicion], ExpressSnapshot]:
    """Return a table, the suspects, and what is compiled of them."""
    table, suspects = made_table(rng, PORTS)
    snapshot = ExpressCompiler(lambda _store: 0.05, LIMITS).changed(table, suspects)
    assert snapshot is not None
    return table, suspects, snapshot


@given(st.integers(0, 2**32))
def test_what_is_decided_is_what_the_router_asks_first(seed: int) -> None:
    rng = random.Random(seed)
    table, suspects, snapshot = made_snapshot(rng)
    for _ in range(REQUESTS):
        request = made_request(rng)
        found = decided(snapshot, request)
        if isinstance(found, Obstacle):
            continue
        try:
            call = keyed_call(table, "Get", request)
        except LookupFailure:  # its node says what is wrong with the batch or the positions that it asks for
            assert found.of_batch or found.may_wait
            continue
        assert (call.store, call.partition) == (found.store, found.partition)
        assert found.of_batch == (call.freshness.moment is not None)
        is_any = replace(call.freshness, moment=None) == ANY
        of_active, of_position = call.freshness.active_only, call.freshness.at_least is not None
        assert found.may_wait == of_position
        assert is_any or ((of_active or of_position or call.freshness.suits_any) and not found.of_batch)
        assert not (of_position and call.freshness.suits_any)
        # What the last heartbeats say of the bound is left out: the node that is asked knows.
        is_of_one = of_active or of_position
        bound = (
            ANY
            if is_any
            else replace(call.freshness, max_lag=None, at_least=None, max_staleness_ms=None if is_of_one else 1)
        )
        routes = table.store(call.store).partition(call.partition)
        for turn in range(3):
            order = ask_order(routes, bound, suspects, turn)
            asked = [found.node, *found.others]
            assert [_place(each) for each in order[: len(asked)]] == [
                (each.instance_id, each.address, each.role) for each in asked
            ]
        verdicts = [each for each in judge(routes, bound, suspects) if each.eligibility is not Eligibility.EXCLUDED]
        best = verdicts[0].eligibility, verdicts[0].turn
        assert order[0].instance_id in suspects or best[0] is Eligibility.INCLUDED, "none is asked that would refuse"
        well = {
            each.replica
            for each in verdicts
            if (each.eligibility, each.turn) == best
            and each.replica.is_near == order[0].is_near
            and (of_active or each.replica in routes.restored)
        }
        assert is_any or of_position or set(order[: 1 + len(found.others)]) == well


def _place(replica: RoutedReplica) -> tuple[str, str, int]:
    assert replica.node is not None
    return replica.instance_id, replica.node.target, replica.role.value


@given(st.integers(0, 2**32))
def test_what_nodes_are_asked_for_a_page_is_what_the_router_asks_them(seed: int) -> None:
    rng = random.Random(seed)
    table, suspects, snapshot = made_snapshot(rng)
    for _ in range(REQUESTS):
        request = made_page_request(rng)
        request = with_token(rng, request) if rng.random() < 0.3 else request
        calls = decided_page(snapshot, request)
        if calls is None:
            continue
        asked = query_service_pb2.ScanRequest.FromString(request)
        bound = bound_of_page(asked)
        assert bound is None or bound.asked is not Asked.EXACTLY
        store = table.store(asked.store)
        assert not store.spec.is_global
        groups: dict[str, list[int]] = {}
        for partition in [asked.partition] if asked.HasField("partition") else range(len(store.partitions)):
            node = ask_order(store.partitions[partition], ANY, suspects)[0].node
            assert node is not None
            groups.setdefault(node.target, []).append(partition)
        assert [(each.node.address, each.partitions) for each in calls] == list(groups.items())
        for each in calls:
            sent = query_service_pb2.ScanRequest.FromString(each.request)
            assert sent.forwarding == types_pb2.Forwarding(epoch=table.epoch, hops=1, entry_keys=True)
            assert (list(sent.partitions) or [sent.partition]) == each.partitions
            assert sent.HasField("partition") == (len(each.partitions) == 1)


def test_most_lookups_of_a_fleet_that_is_well_are_decided() -> None:
    rng = random.Random(5)
    count = 0
    for _ in range(200):
        snapshot = made_snapshot(rng)[-1]
        count += sum(isinstance(decided(snapshot, made_request(rng)), Decided) for _ in range(REQUESTS))
    assert count > 200 * REQUESTS * 0.2


def test_most_pages_of_a_fleet_that_is_well_are_decided() -> None:
    rng = random.Random(5)
    count = 0
    for _ in range(200):
        snapshot = made_snapshot(rng)[-1]
        count += sum(decided_page(snapshot, made_page_request(rng)) is not None for _ in range(REQUESTS))
    assert count > 200 * REQUESTS * 0.15


def test_a_snapshot_is_made_only_when_something_has_changed() -> None:
    table, suspects = made_table(random.Random(1), PORTS)
    late_after_s = 0.05
    compiler = ExpressCompiler(lambda _store: late_after_s, LIMITS)
    first = compiler.changed(table, suspects)
    assert first is not None
    assert compiler.changed(table, suspects) is None
    late_after_s = 0.0501
    assert compiler.changed(table, suspects) is None, "so small a change isn't worth one"
    late_after_s = 0.08
    second = compiler.changed(table, suspects)
    assert second is not None
    assert second.number == first.number + 1
    nothing = compiler.changed(None, suspects)
    assert nothing is not None
    assert not nothing.stores
