"""Permits: what the program in front of a server may answer without asking, as the rules say. On the event loop.

A caller's first read of a store comes to this process, which judges it. If it is allowed, the program gets a permit for
such reads of this caller. When rules, keys or revoked certificates change, all permits are withdrawn, before anybody is
judged by the new ones.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from statehouse.control.v1 import serving_pb2
from statehouse.link.link import CALLS, FromProxy, Link, LinkContext, ToProxy
from statehouse.security.rights import stores_asked

if TYPE_CHECKING:
    from statehouse.security.gate import Gate

_GIVEN: Final = frozenset(
    {"Get", "BatchGet", "Scan", "Count", "FetchWindows", "FetchSessions", "GetAsOf", "GetHistory"}
)
_HOLDS_S: Final = 60.0
"""After this time a caller is judged again, though nothing is known to have changed."""
_AGAIN_S: Final = 1.0
"""The program forgets permits when it has very many. Whoever then comes here gets theirs again, after this time."""
_REMEMBERED_MAX: Final = 10_000
_STORES_MAX: Final = 100
"""Of one batch. Whoever reads more of them at once is judged each time."""
_US: Final = 1e6


class Permits:
    """Gives permits. `gate`: who judges."""

    def __init__(self, gate: Gate, link: Link) -> None:
        self._gate, self._link = gate, link
        self._kinds = {name: kind for kind, name in CALLS.items() if name in _GIVEN}
        self._given_at: OrderedDict[tuple[int, FromProxy, str], float] = OrderedDict()
        gate.on_changed = self.withdraw

    def withdraw(self) -> None:
        """Withdraw all."""
        self._given_at.clear()
        self._link.send(ToProxy.WITHDRAW)

    def admitted(self, name: str, path: str, request: bytes, context: LinkContext) -> None:
        """Give a permit for what has just been admitted, if there may be one."""
        if (kind := self._kinds.get(name)) is None:
            return
        stores, _ = stores_asked(path, request)
        now = time.monotonic()
        for store in list(stores)[:_STORES_MAX]:
            place = (context.caller, kind, store)
            if now - self._given_at.get(place, -_AGAIN_S) < _AGAIN_S:
                continue
            permit = self._gate.permit(path, context.shown)
            if permit is None:
                return
            self._given_at[place] = now
            self._given_at.move_to_end(place)
            if len(self._given_at) > _REMEMBERED_MAX:
                self._given_at.popitem(last=False)
            told = serving_pb2.ServingPermit(
                caller=context.caller,
                call=kind,
                store=store,
                until_us=int((now + min(_HOLDS_S, permit.holds_s)) * _US),
                may_forward=permit.may_forward,
                conceals=permit.conceals,
            )
            self._link.send(ToProxy.PERMIT, 0, told.SerializeToString())
