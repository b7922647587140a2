"""Lookups that wait for a position at the same node: one asks, the others wait along."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from router.calls.attempts import CallOutcome
from router.lookups.joined_waits import JoinedWaits
from statehouse.errors import LookupFailure, Reason

PLACE = ("n1", "scores", 0)


def behind(position: int, wanted: int = 20) -> LookupFailure:
    metadata = {"position": str(position), "wanted": str(wanted)}
    return LookupFailure(Reason.POSITION_NOT_REACHED, f"position {position} is below the wanted {wanted}", metadata)


class Node:
    """Answers attempts when told to; `asked` counts them by who asks."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.outcomes: asyncio.Queue[CallOutcome] = asyncio.Queue()

    def attempt(self, who: str) -> Callable[[], Awaitable[CallOutcome]]:
        async def ask() -> CallOutcome:
            self.asked[who] += 1
            return await self.outcomes.get()

        return ask


@pytest.fixture
def node() -> Node:
    return Node()


async def begin(
    waits: JoinedWaits, node: Node, who: str, wanted: int, timeout_s: float = 60.0
) -> asyncio.Task[CallOutcome]:
    task = asyncio.create_task(waits.ask(PLACE, wanted, behind(1, wanted), timeout_s, node.attempt(who)))
    await asyncio.sleep(0)
    return task


async def test_who_wants_as_much_or_more_waits_along_and_is_told_the_same(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    same, more = [await begin(waits, node, "along", wanted) for wanted in (20, 30)]
    node.outcomes.put_nowait(behind(12))
    for task, wanted in ((lead, 20), (same, 20), (more, 30)):
        failure = await task
        assert isinstance(failure, LookupFailure)
        assert failure.message == f"position 12 is below the wanted {wanted}"
        assert (failure.metadata["position"], failure.metadata["wanted"]) == ("12", str(wanted))
    assert node.asked == {"lead": 1}


async def test_who_wants_less_asks_alone_and_is_waited_along_with(node: Node) -> None:
    waits = JoinedWaits()
    tasks = [await begin(waits, node, f"for {wanted}", wanted) for wanted in (20, 15, 17)]
    assert node.asked == {"for 20": 1, "for 15": 1}
    for _ in range(2):
        node.outcomes.put_nowait(behind(3))
    assert all(isinstance(each, LookupFailure) for each in await asyncio.gather(*tasks))


async def test_when_it_is_reached_all_ask_at_once(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    along = [await begin(waits, node, "along", 20) for _ in range(5)]
    node.outcomes.put_nowait(b"it")
    assert await lead == b"it"
    for _ in range(2):
        await asyncio.sleep(0)
    assert node.asked["along"] == 5
    for _ in along:
        node.outcomes.put_nowait(b"theirs")
    assert await asyncio.gather(*along) == [b"theirs"] * 5


async def test_one_of_them_asks_when_the_first_one_leaves(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    along = [await begin(waits, node, "along", 20) for _ in range(5)]
    lead.cancel()
    await asyncio.wait([lead])
    await asyncio.sleep(0)
    assert node.asked == {"lead": 1, "along": 1}
    node.outcomes.put_nowait(behind(9))
    assert {str(each) for each in await asyncio.gather(*along)} == {str(behind(9))}


async def test_a_node_that_fails_is_not_asked_by_each(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    along = [await begin(waits, node, "along", 20) for _ in range(50)]
    failure = LookupFailure(Reason.UNREACHABLE, "connection refused")
    node.outcomes.put_nowait(failure)
    assert await asyncio.gather(lead, *along) == [failure] * 51
    assert node.asked == {"lead": 1}


async def test_they_go_on_a_few_at_a_time(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    along = [await begin(waits, node, "along", 20) for _ in range(50)]
    node.outcomes.put_nowait(behind(3))
    await lead
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(each.done() for each in along) == 16
    await asyncio.wait(along)


async def test_a_wait_is_bounded_and_does_not_end_the_others(node: Node) -> None:
    waits = JoinedWaits()
    lead = await begin(waits, node, "lead", 20)
    short = await begin(waits, node, "short", 20, timeout_s=0.01)
    outcome = await short
    assert isinstance(outcome, LookupFailure)
    assert outcome.metadata["position"] == "1"
    assert not lead.done()
    node.outcomes.put_nowait(b"it")
    assert await lead == b"it"
    assert not waits._under_way
