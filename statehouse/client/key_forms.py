"""How stores write their keys: asked for when a caller's key is a number, or columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from statehouse.client.conversion import from_stores
from statehouse.client.keys import KeyForm
from statehouse.client.routers import Routers
from statehouse.client.store_frame import named_store
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2

KEPT_S: Final = 30.0
"""What is known is taken so long: a store of the same name may be made anew, with another serde."""
# What a server says that has no list of stores, as a node, and one that doesn't show it to this caller.
_UNTOLD: Final = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})


class KeyForms:
    """The forms of stores' keys, by what the fleet tells. Lives on the event loop.

    `followed(store)` is what a follower of the fleet knows already, None if it knows nothing.
    """

    def __init__(self, router: Routers, followed: Callable[[str], KeyForm | None]) -> None:
        self._router, self._followed = router, followed
        self._known: Mapping[str, KeyForm] = {}
        self._asked_at = float("-inf")

    async def of(self, store: str, seconds: float) -> KeyForm:
        """Return the form of a store's keys.

        Raises:
            TypeError: the server doesn't say: so callers must give text or bytes.
            LookupFailure: UNKNOWN_STORE; or no router answers.

        """
        followed = self._followed(store)
        if followed is not None:
            return followed
        if store in self._known and time.monotonic() - self._asked_at < KEPT_S:
            return self._known[store]
        request = fleet_service_pb2.ListStoresRequest()
        try:
            listed = await self._router.ask(
                lambda peer, left_s: peer.fleet.ListStores(request, timeout=left_s), seconds
            )
        except LookupFailure as failure:
            if failure.reason is Reason.PERMISSION_DENIED or failure.metadata.get("grpc_status") in _UNTOLD:
                raise TypeError(
                    f"{self._router.target} doesn't say which key serde store {store} has ({failure.message}): give "
                    "the key as text or as its serialized bytes"
                ) from failure
            raise
        stores = from_stores(listed)
        self._known = {each.name: KeyForm(each.name, each.key_serde, each.key_columns) for each in stores}
        self._asked_at = time.monotonic()
        return self._known[named_store(stores, store).name]
