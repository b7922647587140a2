"""Lookups that the proxy has sent to a node already: that is their first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.rpc import code_pb2, status_pb2

from router.lookups.dispatch import Dispatcher, NodeAnswer
from router.lookups.locate import keyed_call
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.link import CallFailed, HandedLookup
from statehouse.v1 import query_service_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.making_calls import body

Start = Callable[..., Awaitable[Fleet]]
Came = asyncio.Future[bytes | LookupFailure | None]


def handed(to: str, ago_s: float = 0.0) -> tuple[HandedLookup, Came]:
    loop = asyncio.get_running_loop()
    came: Came = loop.create_future()
    return HandedLookup(to, loop.time() - ago_s, came), came


async def answer(fleet: Fleet, lookup: HandedLookup) -> NodeAnswer:
    dispatcher: Dispatcher = fleet.router._handlers.dispatcher
    call = keyed_call(fleet.router.tables.current(), "Get", body("k"))
    return await dispatcher.dispatch(call, Deadline.after(5.0), handed=lookup)


def by(found: NodeAnswer) -> str:
    return query_service_pb2.GetResponse.FromString(found.data).replica.host.instance_id


async def test_an_answer_that_the_caller_has_ends_the_lookup_and_nobody_is_asked(start: Start) -> None:
    fleet = await start("a", "b")
    lookup, came = handed("a")
    came.set_result(b"")
    assert (await answer(fleet, lookup)).data == b""
    assert not fleet.nodes["a"].gets
    assert not fleet.nodes["b"].gets


@pytest.mark.parametrize("is_refused", [True, False])
async def test_what_did_not_go_well_is_asked_elsewhere(start: Start, is_refused: bool) -> None:
    fleet = await start("a", "b")
    lookup, came = handed("a")
    if is_refused:
        came.set_result(LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10"))
    else:
        came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused")))
    assert by(await answer(fleet, lookup)) == "b"
    assert not fleet.nodes["a"].gets
    assert ("a" in fleet.router.health.suspects) is not is_refused


@pytest.mark.parametrize("said", [None, LookupFailure(Reason.WOULD_WAIT, "it would wait")])
async def test_of_whom_nothing_is_known_is_asked_again(start: Start, said: LookupFailure | None) -> None:
    fleet = await start("a", "b")
    lookup, came = handed("a")
    came.set_result(said)
    assert by(await answer(fleet, lookup)) == "a"


async def test_a_late_one_is_hedged_at_once_and_either_may_answer(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=8_000, hedge_min_ms=1)
    lookup, _came = handed("a", ago_s=1.0)
    assert by(await answer(fleet, lookup)) == "b"
    assert not fleet.nodes["a"].gets
    fleet.nodes["b"].freeze()
    lookup, came = handed("a", ago_s=1.0)
    under_way = asyncio.create_task(answer(fleet, lookup))
    await poll_until_async(lambda: fleet.nodes["b"].held, 10, "the hedge")
    came.set_result(b"")
    assert (await under_way).data == b""


async def test_one_that_is_silent_for_as_long_as_an_attempt_may_take_counts_as_such(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=200, hedge_min_ms=200)
    lookup, _came = handed("a", ago_s=0.15)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert by(await answer(fleet, lookup)) == "b"
    assert loop.time() - began < 0.2, "the time before it was handed over counts"
    assert fleet.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT


async def test_a_node_that_the_table_no_longer_names_first_is_not_waited_for_alone(start: Start) -> None:
    fleet = await start("a", "b")
    lookup, _came = handed("gone", ago_s=0.1)
    assert by(await answer(fleet, lookup)) == "a"
