"""Probes: a call that ends with its channel is no answer; a cancelled probe ends."""

from __future__ import annotations

import asyncio

import pytest

from router.calls.channels import NodeChannels
from router.fleet.table import RoutedNode

NODE = RoutedNode("n", "127.0.0.1", 1)


@pytest.fixture
def channels() -> NodeChannels:
    return NodeChannels(None, max_message_bytes=65_536, close_grace_s=0.0)


async def test_a_probe_whose_channel_is_closed_is_not_answered(
    channels: NodeChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed(*_: object) -> bytes:
        raise asyncio.CancelledError

    monkeypatch.setattr(channels, "_call", closed)
    assert not await channels.probe(NODE, 1.0)


async def test_a_probe_ends_when_it_is_told_to(channels: NodeChannels, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> bytes:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(channels, "_call", silent)
    probe = asyncio.create_task(channels.probe(NODE, 1.0))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
