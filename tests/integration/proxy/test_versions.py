"""A router with its proxy switches versions: whatever the proxy has under way is answered by one of them."""

from __future__ import annotations

import asyncio

import pytest

from statehouse.contract.version_names import FIRST
from statehouse.errors import LookupFailure, Reason
from tests.support.polling import poll_until_async
from tests.support.proxy import PROXY
from tests.support.two_versions import DEPLOYED, Callers, two_versions

SWITCHES = 40


@pytest.mark.parametrize("is_troubled", [False, True])
async def test_no_answer_is_of_two_versions_and_none_fails(is_troubled: bool) -> None:
    fleet = await two_versions(proxy=str(PROXY), express=True, attempt_timeout_ms=200, hedge_min_ms=5)
    try:
        callers = Callers(fleet.channel)
        running = asyncio.create_task(callers.run())
        versions = DEPLOYED
        for turn in range(SWITCHES):
            if is_troubled:  # so that the proxy hands calls over while versions change
                troubled = fleet.nodes["ac"[turn % 2]]
                troubled.delay_s = 0.02
                fleet.nodes["ac"[1 - turn % 2]].delay_s = 0.0
                fleet.nodes["bd"[turn % 2]].failure = (
                    LookupFailure(Reason.PARTITION_RESTORING, "at 1 of 2") if turn % 3 == 0 else None
                )
            versions = versions.promoted("v2" if turn % 2 == 0 else FIRST, 2**40)
            fleet.router.versions.take(versions)
            expected = callers.answers.get(versions.serving, 0) + 15
            await poll_until_async(
                lambda n=expected, v=versions.serving: callers.answers.get(v, 0) >= n, 30, "answers of the version"
            )
        callers.stop()
        await running
    finally:
        await fleet.stop()
    assert callers.failed == []
    assert callers.mixed == []
    assert min(callers.answers.values()) >= 15 * SWITCHES // 2
    assert callers.walks_ended <= SWITCHES
