"""Keeps what is known of the stores: their serdes, which say how their values are shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from statehouse.errors import LookupFailure
from statehouse.runtime.background import BackgroundWork
from statehouse.v1 import fleet_service_pb2
from statehouse.web.gateway import Gateway

_KEPT_S: Final = 5.0
_ASKED_AGAIN_S: Final = 0.5


class KnownStores:
    """The stores by name, as a router has told them lately. Lives on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stores: Mapping[str, fleet_service_pb2.StoreInfo] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._background = BackgroundWork()

    async def find(self, name: str, timeout_s: float) -> fleet_service_pb2.StoreInfo | None:
        """Return a store; None if there is none of this name: the call about it fails on its own.

        One that is known is asked for again in the background, so that no lookup waits for that.

        Raises:
            LookupFailure: no router answers.

        """
        found = self._stores.get(name)
        if found is not None:
            if self._age_s > _KEPT_S and not self._asking.locked():
                self._background.start(self._refresh(), "ask for the stores")
            return found
        async with self._asking:
            if name not in self._stores and self._age_s > _ASKED_AGAIN_S:
                await self._ask(timeout_s)
        return self._stores.get(name)

    async def close(self) -> None:
        """End."""
        await self._background.cancel()

    @property
    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._asked_at

    async def _refresh(self) -> None:
        with contextlib.suppress(LookupFailure):  # what is known stays
            async with self._asking:
                await self._ask(_KEPT_S)

    async def _ask(self, timeout_s: float) -> None:
        request = fleet_service_pb2.ListStoresRequest()
        response: fleet_service_pb2.ListStoresResponse = await self._gateway.ask(
            lambda peer, left_s: peer.fleet.ListStores(request, timeout=left_s), timeout_s
        )
        self._stores = {each.name: each for each in response.stores}
        self._asked_at = asyncio.get_running_loop().time()
