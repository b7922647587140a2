"""Suspicion: who comes under it, and what ends it. The probe is a fake that tests hold the strings of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.calls.health import NodeHealth
from router.fleet.table import RoutedNode
from statehouse.errors import Reason
from statehouse.runtime.backoff import BackoffPolicy
from tests.support.polling import poll_until_async

A = RoutedNode("a", "127.0.0.1", 1, incarnation="first")


class Probes:
    """Answers as told; counts how often it was asked, and how often at the same time."""

    def __init__(self) -> None:
        self.alive = False
        self.asked = self.under_way = self.most_at_once = 0

    async def __call__(self, _node: RoutedNode, _timeout_s: float) -> bool:
        self.asked += 1
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return self.alive


@pytest.fixture
def probes() -> Probes:
    return Probes()


@pytest.fixture
async def health(probes: Probes) -> AsyncIterator[NodeHealth]:
    tracked = NodeHealth(probes, probe_timeout_s=0.1, probes=BackoffPolicy("probe", 0.001, 0.01))
    yield tracked
    await tracked.close()


def _fail(health: NodeHealth, reason: Reason = Reason.UNREACHABLE, started_at: float | None = None) -> None:
    now = asyncio.get_running_loop().time()
    health.failed(A, reason, "refused", now if started_at is None else started_at)


@pytest.mark.feature("slow-dead-nodes")
@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT])
async def test_slow_and_dead_are_told_apart(health: NodeHealth, reason: Reason) -> None:
    _fail(health, reason)
    assert health.suspects["a"].reason is reason


async def test_a_defect_in_a_probe_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_node: RoutedNode, _timeout_s: float) -> bool:
        raise ValueError("a defect in probing")

    health = NodeHealth(broken, probe_timeout_s=0.1, probes=BackoffPolicy("probe", 0.001, 0.01))
    _fail(health)
    await poll_until_async(lambda: "a defect in probing" in caplog.text, 5, "the defect")
    assert "probe a" in caplog.text
    await health.close()


@pytest.mark.parametrize(
    "reason",
    [
        Reason.OVERLOADED,
        Reason.INTERNAL,
        Reason.PARTITION_RESTORING,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    ],
)
async def test_a_refusal_is_no_ground_for_suspicion(health: NodeHealth, reason: Reason) -> None:
    _fail(health, reason)
    assert not health.suspects


async def test_a_slow_node_that_dies_is_dead(health: NodeHealth) -> None:
    _fail(health, Reason.ATTEMPT_TIMED_OUT)
    _fail(health, Reason.UNREACHABLE)
    assert health.suspects["a"].reason is Reason.UNREACHABLE


async def test_an_answer_ends_it(health: NodeHealth) -> None:
    _fail(health)
    health.answered(A)
    assert not health.suspects


@pytest.mark.feature("slow-dead-nodes")
async def test_a_probe_ends_it_and_only_one_is_under_way(health: NodeHealth, probes: Probes) -> None:
    for _ in range(20):
        _fail(health)
    await poll_until_async(lambda: probes.asked > 3, 10, "some probes")
    assert "a" in health.suspects
    probes.alive = True
    await poll_until_async(lambda: not health.suspects, 10, "a probe to get through")
    assert probes.most_at_once == 1


async def test_a_failure_from_before_the_recovery_proves_nothing(health: NodeHealth) -> None:
    earlier = asyncio.get_running_loop().time()
    _fail(health)
    health.answered(A)
    _fail(health, started_at=earlier - 1)
    assert not health.suspects
    _fail(health)
    assert "a" in health.suspects


async def test_a_node_that_answers_probes_only_is_probed_later_each_time(health: NodeHealth, probes: Probes) -> None:
    probes.alive = True
    for _ in range(3):
        _fail(health, Reason.ATTEMPT_TIMED_OUT)
        await poll_until_async(lambda: not health.suspects, 10, "a probe to get through")
    assert health._backoff.failed("a") == pytest.approx(0.008)
    health.answered(A)
    assert health._backoff.failed("a") == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("nodes", "stays"),
    [
        ({"a": A}, True),
        ({}, False),
        ({"a": RoutedNode("a", "127.0.0.1", 1, incarnation="second")}, False),
        ({"a": RoutedNode("a", "127.0.0.1", 2, incarnation="first")}, False),
    ],
)
async def test_another_process_or_address_starts_clean(
    health: NodeHealth, nodes: dict[str, RoutedNode], stays: bool
) -> None:
    _fail(health)
    health.retain(nodes)
    assert ("a" in health.suspects) is stays
