"""The audit log: who was denied what, and operators' calls. It has no token and no certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from statehouse.errors import Reason

log = structlog.get_logger("audit")

LINES_PER_S: Final = 20
"""Lines about denials in a second, and about operators' calls of one method: callers must not fill the disk."""
_TEXT_MAX: Final = 200
_DENIALS: Final = "denials"


class AuditLog:
    """Writes the lines. `clock`: seconds that only grow. `forwarder`: who has passed a call on, empty if nobody has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second, self._wanted = int(clock()), Counter[str]()

    def operator_called(self, identity: str, address: str, method: str, *, forwarder: str = "") -> None:
        """Write that a call of operators was allowed, or count it if there were many of this method in this second."""
        if self._has_room(method):
            log.info("operator's call", **_who(identity, forwarder), address=address, method=method)

    def denied(
        self,
        *,
        identity: str,
        address: str,
        method: str,
        store: str,
        reason: Reason,
        detail: str,
        forwarder: str = "",
    ) -> None:
        """Write that a call was denied, or count it if there were many in this second."""
        if self._has_room(_DENIALS):
            log.warning(
                "denied",
                **_who(identity, forwarder),
                address=address[:_TEXT_MAX],
                method=method[:_TEXT_MAX],
                store=store[:_TEXT_MAX],
                reason=reason.name,
                detail=detail,
            )

    def say_left_out(self) -> None:
        """Write how many lines of an earlier second were left out. Call this at least each second or so."""
        second = int(self._clock())
        if second == self._second:
            return
        left_out = {what: wanted - LINES_PER_S for what, wanted in self._wanted.items() if wanted > LINES_PER_S}
        self._second, self._wanted = second, Counter()
        if denials := left_out.pop(_DENIALS, 0):
            log.warning("denials left out", left_out=denials)
        for method, calls in left_out.items():
            log.info("operators' calls left out", method=method, left_out=calls)

    def _has_room(self, what: str) -> bool:
        """Count a line about `what`, and return whether it may be written."""
        self.say_left_out()
        self._wanted[what] += 1
        return self._wanted[what] <= LINES_PER_S


def _who(identity: str, forwarder: str) -> dict[str, str]:
    """Return the fields that say who has called, the forwarder first: that one was at the other end."""
    return {"forwarder": forwarder, "identity": identity} if forwarder else {"identity": identity}
