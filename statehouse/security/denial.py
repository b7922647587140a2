"""What the rules say of a call by a known caller. Pure: processes decide with it, and so do simulated ones."""

from __future__ import annotations

from dataclasses import dataclass

from statehouse.errors import SHOWN_MAX, LookupFailure, Reason
from statehouse.security.identities import ANONYMOUS, KnownCaller
from statehouse.security.rights import CHANGES, RIGHTS, Right, stores_asked
from statehouse.security.rules import may


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a call is denied. `right`: what the caller lacks; `store`: for which store. Empty if it isn't about one."""

    reason: Reason
    message: str
    right: str = ""
    store: str = ""

    def failure(self, identity: str) -> LookupFailure:
        """Return the failure that the caller gets; `identity` is the caller's."""
        return LookupFailure(
            self.reason, self.message, {"identity": identity, "right": self.right, "store": self.store}
        )


def denial_of(caller: KnownCaller, method: str, request: object) -> Denial | None:
    """Return why a caller may not make this call; None: they may.

    `method` and `request` as in `Gate.admit`.

    Raises:
        LookupFailure: INVALID_REQUEST for a batch that is far too large.

    """
    right = RIGHTS.get(method)
    if right is None:
        return _denied(caller, "", "", "nobody may call this method")
    if not may(caller.grants, right):  # for no store at all: then nothing is read for them
        return _denied(caller, right, "", f"{caller.name} lacks the right {right}")
    stores, forwarded = stores_asked(method, request)
    for store in stores or (None,):
        if not may(caller.grants, right, store):
            # What the store is called is the caller's choice, and may be long.
            named = (store or "")[:SHOWN_MAX]
            about = f" for the store {named!r}" if stores else ""
            return _denied(caller, right, named, f"{caller.name} lacks the right {right}{about}")
    if forwarded and not may(caller.grants, Right.FORWARD):
        return _denied(caller, Right.FORWARD, "", f"{caller.name} is no router: leave forwarding.hops out")
    return None


def forwarding_denial(caller: KnownCaller, method: str) -> Denial | None:
    """Return why a caller may not make a call for somebody else whose certificate it shows; None: it may.

    Certificates are no secrets. So a caller that may show those of others reads for them, and no more. A change of the
    fleet needs the others' own token, which says that they want it, or rules that trust the caller with it.
    """
    if not may(caller.grants, Right.FORWARD):
        return _denied(caller, Right.FORWARD, "", f"{caller.name} is no router: it may call for nobody else")
    if RIGHTS.get(method) in CHANGES and not may(caller.grants, Right.ACT_FOR):
        return _denied(
            caller,
            Right.ACT_FOR,
            "",
            f"{caller.name} may only read for others: show a token, which is passed on, or call the node itself, or "
            'have the rules give it also = ["act-for"]',
        )
    return None


def _denied(caller: KnownCaller, right: str, store: str, message: str) -> Denial:
    if caller.name == ANONYMOUS:
        return Denial(Reason.UNAUTHENTICATED, f"{message}; show a certificate or a token", str(right), store)
    return Denial(Reason.PERMISSION_DENIED, message, str(right), store)
